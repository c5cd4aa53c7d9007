"""Segment attention on TPUs: a block of queries at a time, which goes through the keys of its segments only.

All keys and values of a head are in the fast memory, where Pallas brings those of the next head meanwhile. Blocks lie
on a grid over all tokens: a segment's result may depend, in its last bits, on where it begins. Towers, which see one
image at a time, have the same segments whatever else is in the batch. ("FlashAttention-2", arXiv 2307.08691)
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.segment_attention.key_blocks import key_blocks, seen_ranges
from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED, Ref

BLOCK, LARGE_BLOCK = 512, 1024
"""Queries, and keys, of a block; the larger where there is one segment: blocks see most of it as a whole."""

NOTHING_SEEN = -1e20
"""The maximum before any score: above `MASKED`, so that invisible keys weigh nothing."""

FAST_BYTES = 40 << 20
"""Bytes of keys and values in the fast memory, unless those of one head are more."""

_Run = tuple[jax.Array, jax.Array, jax.Array]
"""State of an online softmax: maximum and total [Q, 1], weighted sum of values [Q, H], all float32."""


def tpu_segment_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    relative: RelativeScores | None = None,
    interpret: pltpu.InterpretParams | bool = False,
) -> jax.Array:
    """See `segment_attention`. Raises `NotImplementedError` for a window, and for relative scores."""
    if window is not None or relative is not None:
        raise NotImplementedError("segment attention on TPUs has neither windows nor relative scores")
    tokens, _, size = q.shape
    block = min(LARGE_BLOCK if len(segments.starts) == 2 else BLOCK, _up(tokens, LANES))
    ranges = seen_ranges(segments, _up(tokens, block))
    queries, keys, values = (_padded(each, len(ranges)) for each in (q, k, v))
    attended = call_kernel(key_blocks(ranges, block), ranges, queries, keys, values, scale, interpret)
    return attended[:, :tokens, :size].transpose(1, 0, 2)


def call_kernel(
    blocks: jax.Array,
    ranges: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: float,
    interpret: pltpu.InterpretParams | bool = False,
) -> jax.Array:
    """[N, T, H] of queries, keys and values [N, T, H]; `blocks` are `key_blocks` of the `ranges` that queries see."""
    heads, tokens, size = q.shape
    block = tokens // blocks.shape[1]
    together, buffers = _heads_together(heads, 2 * tokens * size * k.dtype.itemsize)
    own = pl.BlockSpec((together, block, size), lambda head, number, _: (head, number, 0))
    whole = pl.BlockSpec(
        (together, tokens, size), lambda head, number, _: (head, 0, 0), pipeline_mode=pl.Buffered(buffer_count=buffers)
    )
    return pl.pallas_call(
        functools.partial(_kernel, scale=scale * LOG2_E, block=block),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads // together, tokens // block),
            in_specs=[pl.BlockSpec((block, 2), lambda head, number, _: (number, 0)), own, whole, whole],
            out_specs=own,
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=together * buffers * 2 * tokens * size * k.dtype.itemsize + (32 << 20),
        ),
        interpret=interpret,
        name="segment_attention",
    )(blocks, ranges, q, k, v)


def _heads_together(heads: int, bytes_of_head: int) -> tuple[int, int]:
    """Heads that a program computes, and buffers for keys and values of as many: one, or two to hide the reading."""
    for together, buffers in ((2, 2), (1, 2)):
        if heads % together == 0 and together * buffers * bytes_of_head <= FAST_BYTES:
            return together, buffers
    return 1, 1


def _kernel(
    blocks_ref: Ref, ranges_ref: Ref, q_ref: Ref, k_ref: Ref, v_ref: Ref, out_ref: Ref, *, scale: float, block: int
) -> None:
    heads, _, size = q_ref.shape
    # TPUs multiply float32 in one pass of bfloat16 unless they are told not to.
    precision = jax.lax.Precision.HIGHEST if q_ref.dtype == jnp.float32 else None
    product = functools.partial(jax.lax.dot_general, precision=precision, preferred_element_type=jnp.float32)
    first, end, inner, outer = (blocks_ref[part, pl.program_id(1)] for part in range(4))

    def visit(index: jax.Array, runs: tuple[_Run, ...], *, is_whole: bool) -> tuple[_Run, ...]:
        """All heads, each on its own: what one waits for, another computes."""
        start = pl.multiple_of(index * block, block)
        return tuple(one(head, start, run, is_whole=is_whole) for head, run in enumerate(runs))

    def one(head: int, start: jax.Array, run: _Run, *, is_whole: bool) -> _Run:
        keys, values = (ref[head, pl.ds(start, block), :] for ref in (k_ref, v_ref))
        scores = product(q_ref[head], keys, (((1,), (1,)), ((), ()))) * scale
        if not is_whole:
            seen = start + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where((seen >= ranges_ref[:, 0:1]) & (seen < ranges_ref[:, 1:2]), scores, MASKED)
        maximum, total, weighted = run
        highest = jnp.maximum(maximum, scores.max(axis=1, keepdims=True))
        weights, decay = jnp.exp2(scores - highest), jnp.exp2(maximum - highest)
        added = product(weights.astype(values.dtype), values, (((1,), (0,)), ((), ())))
        return highest, total * decay + weights.sum(axis=1, keepdims=True), weighted * decay + added

    column = (block, 1)
    empty = jnp.full(column, NOTHING_SEEN, jnp.float32), jnp.zeros(column, jnp.float32)
    runs = tuple((*empty, jnp.zeros((block, size), jnp.float32)) for _ in range(heads))
    whole, part = (functools.partial(visit, is_whole=each) for each in (True, False))
    before = jnp.minimum(inner, end)
    runs = jax.lax.fori_loop(first, before, part, runs)
    runs = jax.lax.fori_loop(inner, outer, whole, runs)
    runs = jax.lax.fori_loop(jnp.maximum(outer, before), end, part, runs)
    for head, (_, total, weighted) in enumerate(runs):
        out_ref[head] = (weighted / jnp.maximum(total, 1e-30)).astype(out_ref.dtype)


def _padded(heads: jax.Array, tokens: int) -> jax.Array:
    """[N, tokens, a multiple of the lanes] of [T, N, H], with zeros."""
    size = heads.shape[2]
    return jnp.pad(heads, ((0, tokens - len(heads)), (0, 0), (0, _up(size, LANES) - size))).transpose(1, 0, 2)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
