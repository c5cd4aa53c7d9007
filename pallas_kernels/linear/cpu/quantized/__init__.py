"""Products on CPUs with quantised matrices: kernels compiled by Numba, and how such matrices lie for them."""
