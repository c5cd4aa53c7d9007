"""Products on CPUs: a kernel compiled by Numba, called by XLA."""
