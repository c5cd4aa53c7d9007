"""The softmax of decode: scores with queries along sublanes and keys along lanes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.tpu.common import LOG2_E, MASKED, Options, Ref
from jaxllm.pallas_kernels.paged_attention.tpu.layout import LANES


class Running(NamedTuple):
    """State of an online softmax (arXiv 2205.14135) in VMEM, per KV head."""

    maximum: Ref
    """[K, rows, 128], the same in all lanes, and whole numbers: weights beside other maxima, as in prefill, are then
    rounded alike."""
    total: Ref
    """[K, rows, 128], to be summed over lanes."""
    weighted: Ref
    """[K, rows, F * 128]."""


def absorb(run: Running, first: Any, fresh: Any, chunk: list[tuple[jax.Array, jax.Array]], options: Options) -> None:
    """Take one chunk of keys into the softmax of the heads from `first` on, given scores and values of each.

    Where `fresh` they begin anew. All is read before anything is written, so that the compiler may compute the heads at
    the same time.
    """

    def state(head: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        maximum = jnp.where(fresh, MASKED, run.maximum[head])
        return maximum, jnp.where(fresh, 0.0, run.total[head]), jnp.where(fresh, 0.0, run.weighted[head])

    before = [state(first + i) for i in range(len(chunk))]
    after = [_absorb(*state, *parts, options) for state, parts in zip(before, chunk, strict=True)]
    for i, (maximum, total, weighted) in enumerate(after):
        run.maximum[first + i] = maximum
        run.total[first + i] = total
        run.weighted[first + i] = weighted


def _absorb(
    before: jax.Array, total: jax.Array, weighted: jax.Array, scores: jax.Array, values: jax.Array, options: Options
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Maximum, total and weighted values of one head after a chunk."""
    size = scores.shape[1]
    maximum = jnp.maximum(before, jnp.ceil(jnp.max(scores, axis=1, keepdims=True)))
    decay = jnp.exp2(before - maximum)
    weights = jnp.exp2(scores - _wide(maximum, size))
    total = total * decay
    for lane in range(0, size, LANES):
        total = total + weights[:, lane : lane + LANES]
    products = lax.dot_general(
        weights.astype(options.dims.compute_dtype),
        values,
        (((1,), (0,)), ((), ())),
        precision=options.dot_precision,
        preferred_element_type=jnp.float32,
    )
    return maximum, total, weighted * _wide(decay, products.shape[1]) + products


def attended(run: Running, head: Any, value_factor: Any, sink: jax.Array | None) -> jax.Array:
    """The result [rows, F * 128] of one head; `sink` [rows, 128] takes part in the denominator."""
    total = jnp.sum(run.total[head], axis=1, keepdims=True)
    if sink is not None:
        # A sink far above all scores must not overflow: what it is measured against is the larger of both.
        total = total + jnp.exp2(jnp.minimum(sink * LOG2_E - run.maximum[head], 126.0))[:, :1]
    return run.weighted[head] * (value_factor / total)


def _wide(x: jax.Array, lanes: int) -> jax.Array:
    """A column repeated over 128 lanes, repeated over `lanes`."""
    return x if lanes == LANES else jnp.concatenate([x] * (lanes // LANES), axis=1)
