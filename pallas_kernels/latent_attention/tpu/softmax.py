"""The softmax of a block: scores with queries along sublanes and keys along lanes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Sizes
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED

Ref = Any


class State(NamedTuple):
    """State of an online softmax (arXiv 2205.14135) of the rows of a block of queries."""

    maximum: Any
    """[rows, 128], the same in all lanes, and whole numbers: weights alongside other maxima are then rounded alike."""
    total: Any
    """[rows, 128], to be summed over lanes."""
    weighted: Any
    """[rows, Z]."""


def fresh(rows: int, sizes: Sizes, begun: Ref | None = None) -> State:
    """State of queries that have seen nothing, or only the sinks that `begin_with` has turned into `begun`."""
    weighted = jnp.zeros((rows, sizes.value), jnp.float32)
    if begun is None:
        lanes = jnp.zeros((rows, LANES), jnp.float32)
        return State(lanes + MASKED, lanes, weighted)
    maximum, total = (jnp.concatenate([begun[which]] * (rows // sizes.heads), axis=0) for which in (0, 1))
    return State(maximum, total, weighted)


def begin_with(sinks: jax.Array, heads: int) -> jax.Array:
    """Maxima and totals, float32 [2, heads, 128], of heads that have seen only their sink [N]; others saw nothing."""
    scores = jnp.pad(sinks.astype(jnp.float32) * LOG2_E, (0, heads - len(sinks)), constant_values=MASKED)[:, None]
    maximum = jnp.where(scores > MASKED, jnp.ceil(scores), MASKED)
    is_first = lax.broadcasted_iota(jnp.int32, (heads, LANES), 1) == 0
    total = jnp.where(is_first & (scores > MASKED), jnp.exp2(scores - maximum), 0.0)
    return jnp.stack([jnp.broadcast_to(maximum, total.shape), total])


def scores_of(queries: jax.Array, keys: jax.Array, sizes: Sizes) -> jax.Array:
    """Scores times log2(e), float32 [rows, keys]; their factor is part of the queries."""
    return lax.dot_general(
        queries, keys, (((1,), (1,)), ((), ())), precision=sizes.precision, preferred_element_type=jnp.float32
    )


def visible(scores: jax.Array, before: Any, sizes: Sizes) -> jax.Array:
    """Scores with those masked of keys after the query's own: the first query sees the first `before` + 1 keys.

    And of those before its window. Row m is of query m // heads: instead of dividing, places of keys are multiplied.
    """
    key = lax.broadcasted_iota(jnp.int32, scores.shape, 1) - before
    row = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    seen = key * sizes.heads <= row
    if sizes.window:
        seen &= (key + sizes.window) * sizes.heads > row
    return jnp.where(seen, scores, MASKED)


def absorb(state: State, scores: jax.Array, values: jax.Array, sizes: Sizes) -> State:
    """The state after some keys."""
    maximum = jnp.maximum(state.maximum, jnp.ceil(jnp.max(scores, axis=1, keepdims=True)))
    decay = jnp.exp2(state.maximum - maximum)
    weights = jnp.exp2(scores - _wide(maximum, scores.shape[1]))
    total = state.total * decay
    for lane in range(0, scores.shape[1], LANES):
        total = total + weights[:, lane : lane + LANES]
    products = lax.dot_general(
        weights.astype(sizes.dtype),
        values,
        (((1,), (0,)), ((), ())),
        precision=sizes.precision,
        preferred_element_type=jnp.float32,
    )
    return State(maximum, total, state.weighted * _wide(decay, sizes.value) + products)


def attended(state: State) -> jax.Array:
    """The results [rows, Z]."""
    return state.weighted / jnp.sum(state.total, axis=1, keepdims=True)


def _wide(x: jax.Array, lanes: int) -> jax.Array:
    """A column repeated over 128 lanes, repeated over `lanes`."""
    return x if lanes == LANES else jnp.concatenate([x] * (lanes // LANES), axis=1)
