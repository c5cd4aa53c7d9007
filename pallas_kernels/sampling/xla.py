"""Choosing tokens with XLA: on any device, and from logits that are split over several."""

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.pallas_kernels.sampling.blocks import BLOCK, argmax, to_blocks
from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.filters import filter_thresholds, keep, no_thresholds, softmax_weights
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary


def xla_choose_tokens(logits: Array, choice: Choice, vocabulary: Vocabulary = WHOLE) -> Array:
    """See `choose_tokens`. What no row needs is skipped by conditionals."""
    greedy, maximum = argmax(logits, vocabulary)

    def some_random() -> Array:
        return jnp.where(choice.is_random, _draw(logits, maximum, choice, vocabulary), greedy)

    tokens: Array = lax.cond(jnp.any(choice.is_random), some_random, lambda: greedy)
    return tokens


def _draw(logits: Array, maximum: Array, choice: Choice, vocabulary: Vocabulary) -> Array:
    """Random tokens, int32 [R]; meaningless for greedy rows."""
    weights = softmax_weights(logits, maximum, choice.temperature)
    thresholds = lax.cond(
        choice.any_filter,
        lambda: filter_thresholds(weights, logits, choice, vocabulary),
        lambda: no_thresholds(logits.shape[0]),
    )
    # Computed once: the compiler for TPUs would compute it again as it moves blocks, which takes eight times longer.
    weights = lax.optimization_barrier(keep(weights, logits, thresholds))
    return draw(weights, choice.chance, vocabulary)


def draw(weights: Array, chance: Array, vocabulary: Vocabulary = WHOLE) -> Array:
    """An index for each row of `weights` float32 [R, V], with probability proportional to its weight: int32 [R].

    `chance` float32 [R, 2] are numbers in [0, 1). First the block is drawn, then the place in it, each by the inverse
    of the cumulated weights with a number of its own: rare tokens keep their share, which one 24-bit number for the
    whole vocabulary would round away. An index of weight zero is never drawn while the row has a positive one.
    """
    blocks = to_blocks(weights, 0.0)
    # The compiler for TPUs takes a third of the time for sums of something that is computed as it is added up.
    sums = jnp.sum(jnp.where(blocks > 0, blocks, 0.0), axis=2)
    block = _invert(vocabulary.gather(sums), chance[:, 0])
    index = block * BLOCK + _invert(vocabulary.take(blocks, block), chance[:, 1])
    return jnp.minimum(index, vocabulary.size(weights.shape[1]) - 1).astype(jnp.int32)


def _invert(weights: Array, chance: Array) -> Array:
    """First index of [R, M] whose cumulated weight exceeds `chance` [R] of the sum, among positive weights."""
    cumulated = jnp.cumsum(weights, axis=1)
    # Rounding may leave nothing above the target, or make the sum grow over a weight of zero.
    positive = weights > 0
    above = positive & (cumulated > chance[:, None] * cumulated[:, -1:])
    last = weights.shape[1] - 1 - jnp.argmax(positive[:, ::-1], axis=1)
    return jnp.where(jnp.any(above, axis=1), jnp.argmax(above, axis=1), last)
