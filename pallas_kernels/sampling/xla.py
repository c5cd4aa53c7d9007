"""Choosing tokens with XLA: on any device, and from logits that are split over several."""

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.pallas_kernels.sampling.blocks import argmax
from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.draw import draw
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
