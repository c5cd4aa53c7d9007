"""Products on CPUs with matrices of few bits: kernels compiled by Numba, and how such matrices lie for them."""
