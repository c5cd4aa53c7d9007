"""Array-in, array-out operations: a plain-JAX reference and one implementation per backend."""
