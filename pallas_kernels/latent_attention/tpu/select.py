"""The choice of the best keys of a token on TPUs, without a sort: a search for a threshold, and moves of lanes.

Scores become integers of the same order, and 32 counts find the one that is number `top` from above. The places of the
chosen keys are moved to the left of their row of 128 in seven steps, one for each bit of the distance; counts of chosen
keys before them, which are products with triangles of ones, tell the distances. Then rows are appended to one another.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.tpu_common.target import target

TOGETHER = 8
"""Tokens of a step of the grid: the steps of one wait for one another, those of several do not."""

MOST_ROWS = 2048
"""Rows of 128 scores of a token at most, 262,144 keys: triangles have as many rows and columns."""

_SMALLEST = -(2**31)
_NOTHING = 1 << 8
"""In place of a distance, where a lane holds no chosen key."""

Ref = Any


def _ordered(scores: jax.Array) -> jax.Array:
    """Integers in the order of `scores`; both zeros are one."""
    bits = lax.bitcast_convert_type(jnp.where(scores == 0, 0.0, scores), jnp.int32)
    return bits ^ (lax.shift_right_arithmetic(bits, 31) & 0x7FFFFFFF)


def _ones(condition: jax.Array) -> jax.Array:
    return condition.astype(jnp.float32).astype(jnp.bfloat16)


def _product(left: jax.Array, right: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """A product of small whole numbers, which is exact."""
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _triangle(size: int) -> jax.Array:
    """[size, size] with ones above the diagonal: a row times it counts what comes before."""
    shape = size, size
    return _ones(lax.broadcasted_iota(jnp.int32, shape, 0) < lax.broadcasted_iota(jnp.int32, shape, 1))


def _count(condition: jax.Array) -> jax.Array:
    """How often it holds in [rows, 128], as float32 [1, 1]."""
    return jnp.sum(jnp.sum(condition.astype(jnp.float32), axis=0, keepdims=True), axis=1, keepdims=True)


def _thresholds(keys: Ref, top: int) -> list[jax.Array]:
    """For each token the largest number that `top` of its `keys` [8, rows, 128] reach, int32 [1, 1]."""

    def step(number: Any, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        bit = lax.shift_left(jnp.int32(1), 31 - number)
        tried = [each | bit for each in found]
        enough = [_count(keys[token] >= (each ^ _SMALLEST)) >= top for token, each in enumerate(tried)]
        return tuple(jnp.where(is_enough, new, old) for is_enough, new, old in zip(enough, tried, found, strict=True))

    found = lax.fori_loop(0, 32, step, tuple(jnp.zeros((1, 1), jnp.int32) for _ in range(TOGETHER)))
    return [each ^ _SMALLEST for each in found]


def _chosen(keys: jax.Array, threshold: jax.Array, top: int, lanes: jax.Array, rows: jax.Array) -> jax.Array:
    """Which of `keys` [rows, 128] are chosen: those above, and of those that reach it the first."""
    above, equal = keys > threshold, keys == threshold
    ones = _ones(equal)
    totals = _product(ones, jnp.ones((LANES, LANES), jnp.bfloat16), (1, 0)).astype(jnp.bfloat16)
    before = _product(ones, lanes, (1, 0)) + _product(rows, totals, (0, 0))
    return above | (equal & (before < top - _count(above)))


def _moved_left(values: jax.Array, chosen: jax.Array, before: jax.Array) -> jax.Array:
    """`values` int32 [rows, 128], the chosen ones first in each row; `before` are the chosen ones before each."""
    lane = lax.broadcasted_iota(jnp.int32, values.shape, 1)
    distance = jnp.where(chosen, lane - before, _NOTHING)
    for number in range(LANES.bit_length() - 1):
        bit = 1 << number
        # What a lane gets comes from the right; no two come to one lane, and none comes round the end.
        value, far = (pltpu.roll(each, LANES - bit, 1) for each in (values, distance))
        comes, leaves = (far & bit) != 0, (distance & bit) != 0
        values = jnp.where(comes, value, values)
        distance = jnp.where(comes, far - bit, jnp.where(leaves, _NOTHING, distance))
    return values


def _kernel(
    positions: Ref,
    scores: Ref,
    places: Ref,
    out: Ref,
    keys: Ref,
    starts: Ref,
    starts_smem: Ref,
    semaphore: Ref,
    *,
    top: int,
) -> None:
    """The kernel's body, for eight tokens; `select_places` gives it its references."""
    shape = keys.shape[1:]
    first = pl.program_id(0) * TOGETHER
    index = lax.broadcasted_iota(jnp.int32, shape, 0) * LANES + lax.broadcasted_iota(jnp.int32, shape, 1)
    for token in range(TOGETHER):
        keys[token] = jnp.where(index <= positions[first + token], _ordered(scores[token]), _SMALLEST)
    lanes, rows = _triangle(LANES), _triangle(shape[0])
    for token, threshold in enumerate(_thresholds(keys, top)):
        chosen = _chosen(keys[token], threshold, top, lanes, rows)
        ones = _ones(chosen)
        before = _product(ones, lanes, (1, 0)).astype(jnp.int32)
        keys[token] = _moved_left(places[token], chosen, before)
        totals = _product(jnp.ones((8, LANES), jnp.bfloat16), ones, (1, 1)).astype(jnp.bfloat16)
        starts[token : token + 1] = _product(totals, rows, (1, 0)).astype(jnp.int32)[:1]
    copy = pltpu.make_async_copy(starts, starts_smem, semaphore)
    copy.start()
    copy.wait()
    lane = lax.broadcasted_iota(jnp.int32, (8, LANES), 1)

    def append(row: Any, _: None) -> None:
        for token in range(TOGETHER):
            start = starts_smem[token, row]
            target, shift = lax.shift_right_logical(start, 7), start & (LANES - 1)
            moved = pltpu.roll(jnp.broadcast_to(keys[token, pl.ds(row, 1)], (8, LANES)), shift, 1)
            present = out[token, pl.ds(target, 1)]
            out[token, pl.ds(target, 1)] = jnp.where(lane >= shift, moved, present)[:1]
            # What comes after the row's own is written over by the next rows.
            out[token, pl.ds(target + 1, 1)] = moved[:1]

    lax.fori_loop(0, shape[0], append, None)


def select_places(
    scores: jax.Array, places: jax.Array, positions: jax.Array, top: int, *, interpret: Any = False
) -> jax.Array:
    """The `places` of the keys with the best scores of each token, in the order of their positions: int32 [B, top].

    Of equal scores those that come first. A token with fewer keys has all of them, and then any others.

    Args:
        scores: float32 [B, K]; those after a token's own position mean nothing.
        places: int32 [B, K].
        positions: int32 [B].
        top: at most K, which is a multiple of 1024 and at most `MOST_ROWS` * 128.
        interpret: for tests.
    """
    tokens, size = scores.shape
    padding, rows = -tokens % TOGETHER, size // LANES
    scores, places = (jnp.pad(each, ((0, padding), (0, 0))).reshape(-1, rows, LANES) for each in (scores, places))
    out_rows = (top // LANES + 2 + 7) // 8 * 8

    def block(count: int) -> pl.BlockSpec:
        return pl.BlockSpec((TOGETHER, count, LANES), lambda step, *_: (step, 0, 0))

    buffers = TOGETHER * LANES * 4 * (5 * rows + 2 * out_rows)
    found: jax.Array = pl.pallas_call(
        partial(_kernel, top=top),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=((tokens + padding) // TOGETHER,),
            in_specs=[block(rows), block(rows)],
            out_specs=block(out_rows),
            scratch_shapes=[
                pltpu.VMEM((TOGETHER, rows, LANES), jnp.int32),
                pltpu.VMEM((TOGETHER, rows), jnp.int32),
                pltpu.SMEM((TOGETHER, rows), jnp.int32),
                pltpu.SemaphoreType.DMA(()),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((tokens + padding, out_rows, LANES), jnp.int32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            vmem_limit_bytes=min(buffers + 6 * rows * rows + 64 * rows * LANES + (8 << 20), target().vmem_bytes),
            disable_bounds_checks=True,
            disable_semaphore_checks=True,
        ),
        interpret=interpret,
        name="latent_attention_select",
    )(jnp.pad(positions, (0, padding)), scores, places)
    return found.reshape(len(found), -1)[:tokens, :top]
