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

from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED, Ref

BLOCK = 512
"""Queries, and keys, of a block."""

NOTHING_SEEN = -1e20
"""The maximum before any score: above `MASKED`, so that invisible keys weigh nothing."""

TWO_HEADS = 48 << 20
"""Bytes of keys and values up to which those of two heads are in the fast memory, in place of one."""


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
    block = min(BLOCK, _up(tokens, LANES))
    place = jnp.arange(_up(tokens, block), dtype=jnp.int32)
    rows = jnp.pad(segments.rows, (0, len(place) - tokens))
    is_token = place < segments.num_tokens
    # What is beyond the tokens sees nothing.
    low = jnp.where(is_token, segments.starts[rows], 0)
    high = jnp.where(is_token, segments.starts[rows + 1], 0)
    blocks = _key_blocks(low, high, block)
    queries, keys, values = (_padded(each, len(place)) for each in (q, k, v))
    attended = _call(blocks, jnp.stack([low, high], axis=1), queries, keys, values, block, scale, interpret)
    return attended[:, :tokens, :size].transpose(1, 0, 2)


def _key_blocks(low: jax.Array, high: jax.Array, block: int) -> jax.Array:
    """The first block of keys that each block of queries sees, and the one after the last: int32 [2, blocks]."""
    first = jnp.where(high > 0, low, len(low)).reshape(-1, block).min(axis=1) // block
    end = (high.reshape(-1, block).max(axis=1) + block - 1) // block
    return jnp.stack([jnp.minimum(first, end), end])


@functools.partial(jax.named_call, name="segment_attention")
def _call(
    blocks: jax.Array,
    ranges: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    block: int,
    scale: float,
    interpret: pltpu.InterpretParams | bool,
) -> jax.Array:
    """[N, T, H] of queries, keys and values [N, T, H], and of what each query sees: `ranges` int32 [T, 2]."""
    heads, tokens, size = q.shape
    bytes_of_head = 2 * tokens * size * k.dtype.itemsize
    own = pl.BlockSpec((1, block, size), lambda head, number, _: (head, number, 0))
    buffers = 2 if 2 * bytes_of_head <= TWO_HEADS else 1
    whole = pl.BlockSpec(
        (1, tokens, size), lambda head, number, _: (head, 0, 0), pipeline_mode=pl.Buffered(buffer_count=buffers)
    )
    return pl.pallas_call(
        functools.partial(_kernel, scale=scale * LOG2_E, block=block),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads, tokens // block),
            in_specs=[pl.BlockSpec((block, 2), lambda head, number, _: (number, 0)), own, whole, whole],
            out_specs=own,
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=buffers * bytes_of_head + (24 << 20),
        ),
        interpret=interpret,
    )(blocks, ranges, q, k, v)


def _kernel(
    blocks_ref: Ref, ranges_ref: Ref, q_ref: Ref, k_ref: Ref, v_ref: Ref, out_ref: Ref, *, scale: float, block: int
) -> None:
    queries, number = q_ref[0], pl.program_id(1)
    low, high = ranges_ref[:, 0:1], ranges_ref[:, 1:2]
    # TPUs multiply float32 in one pass of bfloat16 unless they are told not to.
    precision = jax.lax.Precision.HIGHEST if queries.dtype == jnp.float32 else None
    product = functools.partial(jax.lax.dot_general, precision=precision, preferred_element_type=jnp.float32)

    def visit(index: jax.Array, run: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        maximum, total, weighted = run
        start = pl.multiple_of(index * block, block)
        keys, values = (ref[0, pl.ds(start, block), :] for ref in (k_ref, v_ref))
        scores = product(queries, keys, (((1,), (1,)), ((), ()))) * scale
        seen = start + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.where((seen >= low) & (seen < high), scores, MASKED)
        highest = jnp.maximum(maximum, scores.max(axis=1, keepdims=True))
        weights, decay = jnp.exp2(scores - highest), jnp.exp2(maximum - highest)
        total = total * decay + weights.sum(axis=1, keepdims=True)
        added = product(weights.astype(values.dtype), values, (((1,), (0,)), ((), ())))
        return highest, total, weighted * decay + added

    column = (block, 1)
    empty = jnp.full(column, NOTHING_SEEN, jnp.float32), jnp.zeros(column, jnp.float32)
    run = (*empty, jnp.zeros(queries.shape, jnp.float32))
    _, total, weighted = jax.lax.fori_loop(blocks_ref[0, number], blocks_ref[1, number], visit, run)
    out_ref[0] = (weighted / jnp.maximum(total, 1e-30)).astype(out_ref.dtype)


def _padded(heads: jax.Array, tokens: int) -> jax.Array:
    """[N, tokens, a multiple of the lanes] of [T, N, H], with zeros."""
    size = heads.shape[2]
    return jnp.pad(heads, ((0, tokens - len(heads)), (0, 0), (0, _up(size, LANES) - size))).transpose(1, 0, 2)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
