"""The softmax of decode: scores with queries along sublanes and keys along lanes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.tpu.common import Options
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED, Ref


class State(NamedTuple):
    """State of an online softmax (arXiv 2205.14135) of one KV head."""

    maximum: jax.Array
    """[rows, 128], the same in all lanes, and whole numbers: weights alongside other maxima, as in prefill, are then
    rounded alike."""
    total: jax.Array
    """[rows, 128], to be summed over lanes."""
    weighted: jax.Array
    """[rows, F * 128]."""


class SoftmaxState(NamedTuple):
    """The states of all KV heads in VMEM: [K, ...] each."""

    maximum: Ref
    total: Ref
    weighted: Ref

    def load(self, head: Any) -> State:
        """The state of one head."""
        return State(*(ref[head] for ref in self))

    def store(self, head: Any, state: State) -> None:
        """Keep the state of one head."""
        for ref, value in zip(self, state, strict=True):
            ref[head] = value


def absorb(before: State, fresh: Any, scores: jax.Array, values: jax.Array, options: Options) -> State:
    """The state after a chunk of keys, which starts over where `fresh`."""
    size = scores.shape[1]
    earlier = jnp.where(fresh, MASKED, before.maximum)
    maximum = jnp.maximum(earlier, jnp.ceil(jnp.max(scores, axis=1, keepdims=True)))
    decay = jnp.exp2(earlier - maximum)
    weights = jnp.exp2(scores - _wide(maximum, size))
    total = jnp.where(fresh, 0.0, before.total) * decay
    for lane in range(0, size, LANES):
        total = total + weights[:, lane : lane + LANES]
    products = lax.dot_general(
        weights.astype(options.dims.compute_dtype),
        values,
        (((1,), (0,)), ((), ())),
        precision=options.dot_precision,
        preferred_element_type=jnp.float32,
    )
    weighted = jnp.where(fresh, 0.0, before.weighted) * _wide(decay, products.shape[1]) + products
    return State(maximum, total, weighted)


def attended(state: State, value_factor: Any, sink: jax.Array | None) -> jax.Array:
    """The result [rows, F * 128] of one head; `sink` [rows, 128] takes part in the denominator."""
    total = jnp.sum(state.total, axis=1, keepdims=True)
    if sink is not None:
        # A sink far above all scores must not overflow: what it is measured against is the larger of both.
        total = total + jnp.exp2(jnp.minimum(sink * LOG2_E - state.maximum, 126.0))[:, :1]
    return state.weighted * (value_factor / total)


def _wide(x: jax.Array, lanes: int) -> jax.Array:
    """A column repeated over 128 lanes, repeated over `lanes`."""
    return x if lanes == LANES else jnp.concatenate([x] * (lanes // LANES), axis=1)
