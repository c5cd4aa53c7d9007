"""Paged attention for NVIDIA GPUs of the Hopper generation, in Pallas Mosaic GPU."""
