"""Latent attention for TPUs: a Mosaic kernel."""
