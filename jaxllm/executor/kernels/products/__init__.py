"""Products with matrices of few bits."""
