"""Checkpoints: their files, names and loading."""
