"""Sums over the last axis whose bits depend on the row alone, not on how many rows there are.

On a CPU XLA chooses the order of a sum, and whether a product before an addition is rounded, by the shape of the whole
array. So the same row had other last bits among 8 rows than among 32, and in bfloat16 one more rounding makes a step of
0.4 % of that. Here halves of a row are added to each other until one number is left, and what is added is kept apart
from what made it. Other backends add rows independently of each other as it is.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_SMALLEST = np.finfo(np.float32).tiny
_LARGEST = np.finfo(np.float32).max


def row_sum(x: jax.Array) -> jax.Array:
    """The sums of float32 [..., size] over the last axis, which stays: float32 [..., 1]."""
    return lax.platform_dependent(x, cpu=lambda x: _sum_pairwise(_opaque(x)), default=_plain)


def sum_of_squares(x: jax.Array) -> jax.Array:
    """The sums of the squares of float32 [..., size]: float32 [..., 1]."""
    return lax.platform_dependent(x, cpu=lambda x: _sum_pairwise(jnp.maximum(x * x, _SMALLEST)), default=_plain_squares)


def rounded(x: jax.Array) -> jax.Array:
    """Finite float32 values as they are: a product is rounded before anything is added to it, not fused with that."""
    return lax.platform_dependent(x, cpu=_opaque, default=lambda x: x)


def _opaque(x: jax.Array) -> jax.Array:
    # The compiler cannot know that this does nothing.
    return jnp.minimum(jnp.maximum(x, -_LARGEST), _LARGEST)


def _plain(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=-1, keepdims=True)


def _plain_squares(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x, axis=-1, keepdims=True)


def _sum_pairwise(x: jax.Array) -> jax.Array:
    size = x.shape[-1]
    padding = (1 << (size - 1).bit_length()) - size
    if padding:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x
