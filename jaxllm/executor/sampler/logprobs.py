"""Log-probabilities of chosen tokens and of the most likely ones alongside them."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import register_dataclass

from jaxllm.pallas_kernels.row_sum import rounded, row_sum
from jaxllm.pallas_kernels.sampling.blocks import largest
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary


@register_dataclass
@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities at R places: of one token each, and of the K most likely ones, most likely first.

    `rank` counts from 1 and is one more than the number of tokens that are strictly more likely.
    """

    logprob: Array  # float32 [R]
    rank: Array  # int32 [R]
    top_ids: Array  # int32 [R, K]
    top_logprobs: Array  # float32 [R, K]


def gather_logprobs(
    logits: Array, token_ids: Array, num_top: int, vocabulary: Vocabulary = WHOLE, *, normalized: bool = True
) -> Logprobs:
    """Natural log-probabilities under the softmax of `logits` float32 [R, V], for `token_ids` int32 [R].

    `num_top` is K, and at most V. Unless `normalized`, the logits themselves.
    """
    chosen = vocabulary.take(logits, token_ids)[:, None]
    total = _log_total(logits, vocabulary) if normalized else jnp.zeros_like(chosen)
    rank = 1 + vocabulary.total(jnp.sum(logits > chosen, axis=1, dtype=jnp.int32))
    # Each part's best are candidates; the best of those are the best of all.
    top, top_ids = largest(logits, min(num_top, logits.shape[1]))
    top, top_ids = vocabulary.gather(top), vocabulary.gather(top_ids + vocabulary.start(logits.shape[1]))
    if top.shape[1] > num_top:
        top, places = lax.top_k(top, num_top)
        top_ids = jnp.take_along_axis(top_ids, places, axis=1)
    return Logprobs((chosen - total)[:, 0], rank, top_ids, top - total)


def listed_logprobs(
    logits: Array, token_ids: Array, vocabulary: Vocabulary = WHOLE, *, normalized: bool = True
) -> Array:
    """Natural log-probabilities float32 [R, K] under the softmax of `logits` float32 [R, V], of `token_ids` [R, K].

    Unless `normalized`, the logits themselves.
    """
    found = vocabulary.take_several(logits, token_ids)
    return found - _log_total(logits, vocabulary) if normalized else found


def _log_total(logits: Array, vocabulary: Vocabulary) -> Array:
    """The logarithm of the sum of the exponentials: float32 [R, 1]."""
    maximum = vocabulary.largest(jnp.max(logits, axis=1, keepdims=True))
    maximum = jnp.where(jnp.isfinite(maximum), maximum, 0)
    total = vocabulary.total(row_sum(jnp.exp(logits - maximum)))
    return maximum + rounded(jnp.log(total))


def no_logprobs(num_rows: int, num_top: int) -> Logprobs:
    """Zeros, where nobody asked."""
    rows, top = (num_rows,), (num_rows, num_top)
    return Logprobs(
        jnp.zeros(rows, jnp.float32), jnp.zeros(rows, jnp.int32), jnp.zeros(top, jnp.int32), jnp.zeros(top, jnp.float32)
    )
