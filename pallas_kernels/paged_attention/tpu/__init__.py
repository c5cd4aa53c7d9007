"""Ragged paged attention as Pallas kernels for TPUs (Mosaic)."""
