"""Looking for one entry of a long row in two short steps: first its block, then its place in the block."""

import jax.numpy as jnp
from jax import Array

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
    largest = vocabulary.joined(jnp.max(blocks, axis=2))
    block = jnp.argmax(largest, axis=1)
    index = block * BLOCK + jnp.argmax(vocabulary.take(blocks, block), axis=1)
    # A row of -inf in a padded block, or of NaN, must still name a token.
    last = vocabulary.size(values.shape[1]) - 1
    return jnp.minimum(index, last).astype(jnp.int32), jnp.max(largest, axis=1)
