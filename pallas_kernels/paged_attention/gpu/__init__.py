"""Paged attention for NVIDIA GPUs from Hopper on, in Pallas Mosaic GPU."""
