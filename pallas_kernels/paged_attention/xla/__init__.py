"""Paged attention in plain XLA operations."""
