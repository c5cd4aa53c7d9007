"""Products with experts: which implementation computes them."""
