"""Keys and values in int8 with a scale for each token and head, which lies in the page after what it scales.

So whatever moves, shares or copies pages moves the scales too, and whoever reads a page finds them there. A stored head
is H numbers and then the bits of a float32, whose product with the numbers is the head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

LARGEST = 127
"""Largest stored value: -128 would make the largest value of either sign another one."""
INVERSE = 1 / LARGEST
"""Factor of the largest value of a head that gives its scale. XLA would make one of a division, or not."""
SMALLEST = 1e-36
"""The smallest scale: below it, 0; some processors compute with 0 in the place of numbers below 1e-38."""
SCALE = 4
"""Bytes of a scale."""


class ScaledHeads(NamedTuple):
    """Numbers int8 [..., H] and their scales, float32 [...]."""

    numbers: jax.Array
    scales: jax.Array


def quantise_heads(heads: jax.Array) -> ScaledHeads:
    """Heads [..., H] in int8; what is not finite becomes 0, and a head of zeros has scale 0."""
    heads = jnp.where(jnp.isfinite(heads), heads, 0).astype(jnp.float32)
    largest = jnp.max(jnp.abs(heads), axis=-1)
    is_zero = largest < SMALLEST
    # Multiply by the reciprocal; XLA may or may not rewrite a division, and every backend must store the same.
    factors = jnp.where(is_zero, 0.0, LARGEST / largest)
    numbers = jnp.round(heads * factors[..., None]).astype(jnp.int8)
    return ScaledHeads(numbers, jnp.where(is_zero, 0.0, largest * INVERSE))


def join_scales(stored: ScaledHeads, scale_bytes: int) -> jax.Array:
    """The contents of a page: int8 [..., H + scale bytes]."""
    bits = jax.lax.bitcast_convert_type(stored.scales, jnp.int8)
    padding = ((0, 0),) * (bits.ndim - 1) + ((0, scale_bytes - SCALE),)
    return jnp.concatenate([stored.numbers, jnp.pad(bits, padding)], axis=-1)


def split_scales(heads: jax.Array, scale_bytes: int) -> ScaledHeads:
    """The inverse of `join_scales`."""
    size = heads.shape[-1] - scale_bytes
    return ScaledHeads(heads[..., :size], jax.lax.bitcast_convert_type(heads[..., size : size + SCALE], jnp.float32))
