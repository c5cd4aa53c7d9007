"""Products on CPUs with quantized matrices: kernels compiled by Numba, and how such matrices lie for them."""
