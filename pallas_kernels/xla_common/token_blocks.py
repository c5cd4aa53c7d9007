"""What is computed for a block of tokens at a time, so that nothing has the size of all tokens times their contexts."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Arrays = TypeVar("Arrays")


def map_token_blocks(
    function: Callable[[Arrays], jax.Array], arrays: Arrays, out: jax.Array, num_tokens: jax.Array, size: int
) -> jax.Array:
    """`out` [T, ...] with what `function` makes of each block of `size` tokens that has one before `num_tokens`.

    `arrays` is a tree of arrays [T, ...]; `function` gets [size, ...] of each, zeros after the last token.
    """
    tokens = len(out)
    padded = jax.tree.map(lambda each: _padded(each, -tokens % size), arrays)

    def block(number: jax.Array, out: jax.Array) -> jax.Array:
        own = jax.tree.map(lambda each: lax.dynamic_slice_in_dim(each, number * size, size), padded)
        return lax.dynamic_update_slice_in_dim(out, function(own), number * size, axis=0)

    blocks = lax.div(num_tokens + (size - 1), jnp.int32(size))
    return lax.fori_loop(0, blocks, block, _padded(out, -tokens % size))[:tokens]


def _padded(x: jax.Array, count: int) -> jax.Array:
    """`x` with so many zeros after its first axis."""
    return jnp.pad(x, ((0, count), *((0, 0),) * (x.ndim - 1)))
