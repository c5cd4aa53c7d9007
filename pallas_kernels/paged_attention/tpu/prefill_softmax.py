"""The softmax of prefill: scores with keys along sublanes and queries along lanes, alongside a maximum from before.

A KV head's scores of a chunk are K Q^T [chunk, rows], and what they weigh is V^T P^T [F * 128, rows]. Sums over keys
then cross no lanes, and of the second product the weights are the stationary operand, which fills a matrix unit however
small the heads are.

An online softmax (arXiv 2205.14135) needs the largest score of a chunk before its first weight, so that all wait for
all. Here weights are 2 ** (score - maximum) with a *maximum* from before the chunk, at first 0: any whole number
serves, since it only shifts exponents. Where the sum of a query's weights leaves [2 ** -40, 2 ** 40], for which a score
(with its base e) must be beyond 27 or all below -27, `settle` mends it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxllm.pallas_kernels.paged_attention.tpu.common import Options
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED, SUBLANES, Ref

_BIAS, _MANTISSA = 127, 23
"""Exponent bias of a float32, and mantissa bits."""

_RANGE = 40
"""Exponents of sums up to which nothing is done."""

_LOST = 80
"""Exponents of sums beyond which weights may have overflowed. What was before is then less than 2 ** -40 of the sum."""


class SoftmaxState(NamedTuple):
    """State of the softmax in VMEM, per KV head; rows are queries of all its query heads."""

    maximum: Ref
    """float32 [K, 8, rows]: whole numbers, the same in all 8."""
    total: Ref
    """float32 [K, 8, rows], to be summed over the 8."""
    weighted: Ref
    """float32 [K, F * 128, rows]."""
    strain: Ref
    """int32 [K, 1, 128]: the largest exponent of a sum, up or down, in units of a float32's last bit."""


Scored = tuple[jax.Array, jax.Array]
"""Scores times log2(e) [keys, rows], float32, and values [keys, F * 128] of one KV head."""


def absorb(run: SoftmaxState, first: Any, fresh: Any, real: Any, chunk: list[list[Scored]], options: Options) -> None:
    """Take one chunk of keys into the softmax of the heads from `first` on; rows from `real` on are padding.

    The chunk of a head is cut into parts; each is scored for the last rows or for all. Where `fresh`, heads start over.
    All is read before anything is written, so that the compiler may compute the heads at the same time.
    """
    after = []
    for index, parts in enumerate(chunk):
        maximum, total, weighted = (
            jnp.where(fresh, 0.0, state[first + index]) for state in (run.maximum, run.total, run.weighted)
        )
        for scores, values in parts:
            sums, products = _weigh(scores, maximum[:, -scores.shape[1] :], values, options)
            total, weighted = _add(total, sums), _add(weighted, products)
        after.append((maximum, total, weighted))
    for index, (maximum, total, weighted) in enumerate(after):
        run.maximum[first + index] = maximum
        run.total[first + index] = total
        run.weighted[first + index] = weighted
        run.strain[first + index] = _strain(total, real)


def settle(run: SoftmaxState, scored: Callable[[Any], Scored], options: Options) -> None:
    """Mend, after a chunk, sums that are too large or too small; `scored` gives the chunk of a head again."""
    limit = _RANGE << _MANTISSA

    def head(index: Any, _: None) -> None:
        pl.when(jnp.max(run.strain[index]) > limit)(lambda: _settle_head(run, index, scored(index), options))

    @pl.when(jnp.max(run.strain[...]) > limit)
    def _() -> None:
        lax.fori_loop(0, options.dims.num_kv_heads, head, None)


def _settle_head(run: SoftmaxState, head: Any, chunk: Scored, options: Options) -> None:
    """Sums that are large, but good, are scaled. Others are of this chunk alone, with its own maximum.

    Sums are small only where nothing was seen before, and where they are lost, what was before does not count.
    """
    scores, values = chunk
    exponent = _exponent(jnp.sum(run.total[head], axis=0, keepdims=True))
    lost = (exponent > _LOST) | (exponent < -_RANGE)
    largest = jnp.max(scores, axis=0, keepdims=True)
    own = jnp.where(largest > 0.5 * MASKED, jnp.ceil(largest), 0.0)
    rows = scores.shape[1]
    sums, products = _weigh(scores, jnp.broadcast_to(own, (SUBLANES, rows)), values, options)
    # A power of two from its bits: exact, whatever the unit for powers does.
    shift = jnp.where(exponent > _RANGE, exponent, 0)
    factor = lax.bitcast_convert_type((_BIAS - jnp.minimum(shift, _LOST)) << _MANTISSA, jnp.float32)
    run.maximum[head] = jnp.where(lost, own, run.maximum[head] + shift.astype(jnp.float32))
    run.total[head] = jnp.where(lost, sums, run.total[head] * factor)
    run.weighted[head] = jnp.where(lost, products, run.weighted[head] * factor)


def _weigh(scores: jax.Array, maximum: jax.Array, values: jax.Array, options: Options) -> Scored:
    """Sums of weights [8, rows] and weighted values [F * 128, rows]; `maximum` [8, rows]."""
    rows = scores.shape[1]
    weights = jnp.exp2(scores.reshape(-1, SUBLANES, rows) - maximum)
    products = lax.dot_general(
        values,
        weights.reshape(scores.shape).astype(options.dims.compute_dtype),
        (((0,), (0,)), ((), ())),
        precision=options.dot_precision,
        preferred_element_type=jnp.float32,
    )
    return jnp.sum(weights, axis=0), products


def _add(state: jax.Array, change: jax.Array) -> jax.Array:
    """The state with `change` added to its last rows, or to all."""
    rest = state.shape[1] - change.shape[1]
    return jnp.concatenate([state[:, :rest], state[:, rest:] + change], axis=1) if rest else state + change


def _exponent(total: jax.Array) -> jax.Array:
    """The exponents of sums that are not negative; of 0 it is -127, of infinity and NaN 128."""
    return (lax.bitcast_convert_type(total, jnp.int32) >> _MANTISSA) - _BIAS


def _strain(total: jax.Array, real: Any) -> jax.Array:
    """The largest distance of a row's sum from 1, as an exponent and its fraction: int32 [1, 128]."""
    bits = lax.bitcast_convert_type(jnp.sum(total, axis=0, keepdims=True), jnp.int32)
    row = lax.broadcasted_iota(jnp.int32, bits.shape, 1)
    distance = jnp.where(row < real, jnp.abs(bits - (_BIAS << _MANTISSA)), 0)
    largest = distance[:, :LANES]
    for lane in range(LANES, distance.shape[1], LANES):
        largest = jnp.maximum(largest, distance[:, lane : lane + LANES])
    return largest


def attended(run: SoftmaxState, head: Any, value_factor: Any, sink: jax.Array | None) -> jax.Array:
    """The result [F * 128, rows] of one head; `sink` [1, rows] takes part in the denominator."""
    total = jnp.sum(run.total[head], axis=0, keepdims=True)
    if sink is not None:
        # A sink far above all scores must not overflow: what it is measured against is the larger of both.
        total = total + jnp.exp2(jnp.minimum(sink * LOG2_E - run.maximum[head][:1], 126.0))
    return run.weighted[head] * (value_factor / total)
