"""Low-rank products on CPUs: a kernel compiled by Numba, called by XLA."""
