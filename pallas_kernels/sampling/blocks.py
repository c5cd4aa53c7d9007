"""Looking for one entry of a long row in two short steps: first its block, then its place in the block."""

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary

BLOCK = 128
"""Entries in a block: the lanes of a TPU register, and a divisor of most vocabulary sizes. A vocabulary is split over
devices between blocks (`models.sharding.VOCAB_BLOCK`)."""

MOST_PICKED = 1024
"""More than these are sorted."""


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
    maxima = vocabulary.gather(jnp.max(blocks, axis=2))
    block = jnp.argmax(maxima, axis=1)
    index = block * BLOCK + jnp.argmax(vocabulary.take(blocks, block), axis=1)
    # A row of -inf in a padded block, or of NaN, must still name a token.
    last = vocabulary.size(values.shape[1]) - 1
    return jnp.minimum(index, last).astype(jnp.int32), jnp.max(maxima, axis=1)


def largest(values: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row of `values` [R, V], largest first, and their indices: [R, count] both.

    They lie in the `count` blocks with the largest maxima.
    """
    if count > MOST_PICKED:
        found, places = lax.top_k(values, count)
        return found, places.astype(jnp.int32)
    if values.shape[1] <= 2 * count * BLOCK:
        return _pick(values, count)
    blocks = to_blocks(values, -jnp.inf)
    _, chosen = _pick(jnp.max(blocks, axis=2), count)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(values.shape[0], -1)
    found, places = _pick(candidates, count)
    index = jnp.take_along_axis(chosen, places // BLOCK, axis=1) * BLOCK + places % BLOCK
    # If a row has fewer than `count` finite values, the rest could include padding.
    return found, jnp.minimum(index, values.shape[1] - 1)


def _pick(values: Array, count: int) -> tuple[Array, Array]:
    """`lax.top_k`, one after the other: the compiler for TPUs takes 40 times longer for its sort."""

    def pick(place: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, found, indices = state
        index, value = argmax(left)
        left = jnp.where(jnp.arange(left.shape[1], dtype=jnp.int32) == index[:, None], -jnp.inf, left)
        return left, found.at[:, place].set(value), indices.at[:, place].set(index)

    rows, lowest = values.shape[0], jnp.finfo(values.dtype).min
    if count == 0:
        return values[:, :0], jnp.zeros((rows, 0), jnp.int32)
    # What is taken must be lower than what is left, -inf included.
    state = jnp.maximum(values, lowest), jnp.zeros((rows, count), values.dtype), jnp.zeros((rows, count), jnp.int32)
    _, found, indices = lax.fori_loop(0, count, pick, state)
    return jnp.where(found > lowest, found, -jnp.inf), indices
