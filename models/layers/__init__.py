"""Layers shared by all model families."""
