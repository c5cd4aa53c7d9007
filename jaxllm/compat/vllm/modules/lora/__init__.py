"""Adapters, which there are not."""
