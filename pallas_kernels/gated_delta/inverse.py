"""Systems of linear equations whose matrices are 1 and what is below the diagonal."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

_einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def solve(system: jax.Array, right: jax.Array) -> jax.Array:
    """X [V, C, E] of (1 + the part of `system` [V, C, C] below its diagonal) x = `right`."""
    return _einsum("vij,vje->vie", _inverse(system), right)


def _inverse(system: jax.Array) -> jax.Array:
    """The inverse of 1 + the part of `system` [V, C, C] below its diagonal, with as few operations in a row as can be.

    Inverses of blocks on the diagonal grow from 1 to C: [[A, 0], [B, D]] has [[a, 0], [-d B a, d]], where a and d are
    inverses of A and D. Unlike sums of powers, this is as stable as substitution.
    """
    heads, size, _ = system.shape
    wide = 1 << (size - 1).bit_length()
    system = jnp.pad(system, ((0, 0), (0, wide - size), (0, wide - size)))
    inverse, half = jnp.ones((heads, wide, 1, 1), jnp.float32), 1
    while half < wide:
        count = wide // (2 * half)
        number = jnp.arange(count, dtype=jnp.int32)
        blocks = system.reshape(heads, count, 2, half, count, 2, half)
        below = blocks[:, number, 1, :, number, 0].swapaxes(0, 1)
        first, second = inverse[:, 0::2], inverse[:, 1::2]
        corner = -_einsum("vbij,vbjk,vbkl->vbil", second, below, first)
        upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverse = jnp.concatenate([upper, jnp.concatenate([corner, second], axis=-1)], axis=-2)
        half *= 2
    return inverse[:, 0, :size, :size]
