"""Engines in stages of layers (pipeline parallel)."""
