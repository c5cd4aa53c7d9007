"""Latent attention for CPUs: a kernel compiled by Numba, called by XLA."""
