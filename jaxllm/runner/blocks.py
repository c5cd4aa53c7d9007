"""Looking for one entry of a long row in two short steps: first its block, then its place in the block."""

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.models.sharding import VOCAB_BLOCK
from jaxllm.runner.vocabulary import WHOLE, Vocabulary

BLOCK = VOCAB_BLOCK
"""Entries in a block: the lanes of a TPU register, and a divisor of most vocabulary sizes."""


def to_blocks(values: Array, fill: float) -> Array:
    """[R, V] as [R, blocks, BLOCK]; the last block is completed with `fill`."""
    rows, size = values.shape
    padded = jnp.pad(values, ((0, 0), (0, -size % BLOCK)), constant_values=fill)
    return padded.reshape(rows, -1, BLOCK)


def argmax(values: Array, vocabulary: Vocabulary = WHOLE) -> tuple[Array, Array]:
    """First index of the largest value of each row of `values` [R, V], and that value: int32 [R] and [R].

    XLA's own argmax carries the index through the whole reduction, which is ten times slower on a CPU.
    """
    blocks = to_blocks(values, -jnp.inf)
    maxima = vocabulary.joined(jnp.max(blocks, axis=2))
    block = jnp.argmax(maxima, axis=1)
    index = block * BLOCK + jnp.argmax(vocabulary.take(blocks, block), axis=1)
    # A row of -inf in a padded block, or of NaN, must still name a token.
    last = vocabulary.size(values.shape[1]) - 1
    return jnp.minimum(index, last).astype(jnp.int32), jnp.max(maxima, axis=1)


def largest(values: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row of `values` [R, V], largest first, and their indices: [R, count] both.

    They lie in the `count` blocks with the largest maxima. Sorting a whole vocabulary takes a TPU long, and its
    compiler longer.
    """
    if values.shape[1] <= 2 * count * BLOCK:
        return lax.top_k(values, count)
    blocks = to_blocks(values, -jnp.inf)
    _, chosen = lax.top_k(jnp.max(blocks, axis=2), count)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(values.shape[0], -1)
    found, places = lax.top_k(candidates, count)
    index = jnp.take_along_axis(chosen, places // BLOCK, axis=1) * BLOCK + places % BLOCK
    # Of a row with less than `count` finite values the padding could be among the rest.
    return found, jnp.minimum(index, values.shape[1] - 1)
