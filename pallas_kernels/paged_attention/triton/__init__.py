"""Paged attention for NVIDIA GPUs of every generation since Ampere, compiled by Triton."""
