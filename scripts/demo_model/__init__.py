"""The demo model: its world, the text it learns from, its network, training and evaluation.

Tests of the engine want `held_out.prompts` and `held_out.is_right`, which need the standard library only.
"""
