"""Copies of pages outside of the devices: what there is of each digest, and which of it is on its way. No JAX."""
