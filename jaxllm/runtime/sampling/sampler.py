"""From logits to tokens, inside the step's executable: the order of operations, and what is skipped.

The log-probabilities are those of the model's own logits. Then, as in vLLM: bias and forbidden tokens, penalties;
greedy rows take the largest; the others divide by the temperature, drop what min-p, top-k and top-p cut off, and draw.
What no row of the batch needs is skipped by conditionals over the whole batch, so no value of any parameter causes a
compilation.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import register_dataclass

from jaxllm.runtime.sampling.blocks import argmax, argmax_in_one_pass
from jaxllm.runtime.sampling.filters import filter_thresholds, keep, no_thresholds, softmax_weights
from jaxllm.runtime.sampling.logprobs import Logprobs, gather_logprobs, no_logprobs
from jaxllm.runtime.sampling.noise import draw
from jaxllm.runtime.sampling.penalties import process
from jaxllm.runtime.sampling.rows import SamplingRows, SamplingState
from jaxllm.runtime.sampling.vocabulary import WHOLE, Vocabulary


@register_dataclass
@dataclass(frozen=True)
class SampledRows:
    """The tokens of a step, int32 [R], and their log-probabilities, which are zeros when no row wants any."""

    token_ids: Array
    logprobs: Logprobs


def sample(
    logits: Array,
    rows: SamplingRows,
    state: SamplingState,
    masks: Array | None = None,
    *,
    max_logprobs: int,
    vocabulary: Vocabulary = WHOLE,
    accelerated: bool = False,
) -> tuple[SampledRows, SamplingState]:
    """Choose one token per row of `logits` float32 [R, V], and count it in `state` where the row is valid.

    A row's token depends on its own logits, parameters and state only. `max_logprobs` is static: the number of most
    likely tokens whose log-probabilities are returned, at most V. `masks` int32 [R, W] has a bit for each token of the
    whole vocabulary, 1 where it is allowed (`jaxllm.structured.backend.Mask`); where nothing is left of a row, its
    token is arbitrary. With a `vocabulary` that is split, `logits` and
    `state` are one part, and the result is the same on all devices. `accelerated` (static) chooses what is faster on a
    TPU, with the same result.
    """
    with jax.named_scope("process"):
        processed = process(logits, rows, state)
    if masks is not None:
        processed = jnp.where(_allowed(masks, logits.shape[1], vocabulary), processed, -jnp.inf)
    greedy, maximum = (argmax_in_one_pass if accelerated else argmax)(processed, vocabulary)
    token_ids = lax.cond(
        rows.any_random,
        lambda: jnp.where(rows.temperature > 0, _draw(processed, maximum, rows, vocabulary, accelerated), greedy),
        lambda: greedy,
    )
    with jax.named_scope("logprobs"):
        logprobs = lax.cond(
            rows.any_logprobs,
            lambda: gather_logprobs(logits, token_ids, max_logprobs, vocabulary),
            lambda: no_logprobs(logits.shape[0], max_logprobs),
        )
    # Outside any conditional, so that the donated array is changed in place.
    place = vocabulary.place(token_ids, state.seen.shape[1])
    seen = state.seen.at[rows.slot, place].add(rows.valid.astype(jnp.int32), mode="drop")
    return SampledRows(token_ids, logprobs), replace(state, seen=seen)


def _allowed(masks: Array, size: int, vocabulary: Vocabulary) -> Array:
    """The bits of this part of the vocabulary, which has `size` tokens and begins at a word: bool [R, size]."""
    words = lax.dynamic_slice_in_dim(masks, vocabulary.start(size) // 32, -(-size // 32), axis=1)
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.int32)) & 1
    return bits.reshape(masks.shape[0], -1)[:, :size] != 0


def _draw(logits: Array, maximum: Array, rows: SamplingRows, vocabulary: Vocabulary, accelerated: bool) -> Array:
    """Random tokens, int32 [R]; meaningless for greedy rows."""
    weights = softmax_weights(logits, maximum, rows.temperature)
    thresholds = lax.cond(
        rows.any_filter,
        lambda: filter_thresholds(weights, logits, rows, vocabulary, by_candidates=accelerated),
        lambda: no_thresholds(logits.shape[0]),
    )
    # Computed once: the compiler for TPUs would compute it again as it moves blocks, which takes eight times longer.
    weights = lax.optimization_barrier(keep(weights, logits, thresholds))
    return draw(weights, rows.seed, rows.step, vocabulary)
