"""The inputs of the matrix memory."""

from typing import NamedTuple

import jax


class MatrixMemoryInputs(NamedTuple):
    """The arguments of `matrix_memory` for a step's tokens.

    Axis letters: T tokens, N heads, H key size, E value size.
    """

    query: jax.Array
    """[T, N, H], scaled."""
    key: jax.Array
    """[T, N, H]"""
    value: jax.Array
    """[T, N, E]"""
    taken: jax.Array
    """float32 [T, N] logarithm of the weight with which the token is taken in."""
    decay: jax.Array
    """float32 [T, N], at most 0: logarithm of what is kept of those before."""
