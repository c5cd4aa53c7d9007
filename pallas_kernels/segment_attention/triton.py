"""Segment attention on GPUs through Triton: a program for each block of queries and head.

Blocks lie on a grid over all tokens, as in `tpu`. ("FlashAttention-2", arXiv 2307.08691)
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from jaxllm.pallas_kernels.segment_attention.key_blocks import key_blocks, seen_ranges
from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pallas_kernels.tpu_common.constants import LOG2_E, MASKED

BLOCK = 64
"""Queries, and keys, of a block: scores, and two blocks of keys on their way, fit the memory of an L4."""

LOWEST = -1e15
"""The maximum before any score: so far above `MASKED` that invisible keys weigh nothing."""

_State = tuple[jax.Array, jax.Array, jax.Array]
"""Of an online softmax: weighted sum of values [Q, H], maximum and total [Q], all float32."""


def triton_segment_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    relative: RelativeScores | None = None,
    interpret: bool = False,
) -> jax.Array:
    """See `segment_attention`. Raises `NotImplementedError` for a window, and for relative scores."""
    if window is not None or relative is not None:
        raise NotImplementedError("segment attention through Triton has neither windows nor relative scores")
    tokens, heads, size = q.shape
    blocks = -(-tokens // BLOCK)
    ranges = seen_ranges(segments, blocks * BLOCK)
    call = pl.pallas_call(
        functools.partial(_program, scale=scale * LOG2_E, columns=max(pl.next_power_of_2(size), 16)),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(blocks, heads),
        compiler_params=plgpu.CompilerParams(num_warps=8 if size > 128 else 4, num_stages=2),
        interpret=interpret,
        name="segment_attention",
    )
    attended: jax.Array = call(key_blocks(ranges, BLOCK), ranges, q, k, v)
    return attended


def _program(
    blocks_ref: Any, ranges_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, *, scale: float, columns: int
) -> None:
    """Attention of a block of queries with one head."""
    tokens, _, size = q_ref.shape
    number, head = pl.program_id(0), pl.program_id(1)
    row, column = (jnp.arange(length, dtype=jnp.int32) for length in (BLOCK, columns))
    query = number * BLOCK + row

    def read(ref: Any, places: jax.Array) -> jax.Array:
        """[BLOCK, columns] of the tokens at `places`, with zeros beyond them and beyond the head."""
        inside = (places < tokens)[:, None] & (column < size)[None, :]
        loaded: jax.Array = plgpu.load(ref.at[places[:, None], head, column[None, :]], mask=inside, other=0.0)
        return loaded

    queries = read(q_ref, query)
    low, high = (plgpu.load(ranges_ref.at[query, side]) for side in (0, 1))

    def visit(tile: jax.Array, state: _State, *, is_whole: bool) -> _State:
        weighted, maximum, total = state
        key = tile * BLOCK + row
        keys, values = read(k_ref, key), read(v_ref, key)
        scores = _dot(queries, keys, transposed=True) * scale
        if not is_whole:
            visible = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
            scores = jnp.where(visible, scores, MASKED)
        highest = jnp.maximum(maximum, scores.max(axis=1))
        weights, decay = jnp.exp2(scores - highest[:, None]), jnp.exp2(maximum - highest)
        weighted = weighted * decay[:, None] + _dot(weights.astype(values.dtype), values)
        return weighted, highest, total * decay + weights.sum(axis=1)

    first, end, inner, outer = (blocks_ref[part, number] for part in range(4))
    whole, part = (functools.partial(visit, is_whole=each) for each in (True, False))
    before = jnp.minimum(inner, end)
    nothing = jnp.full(BLOCK, LOWEST, jnp.float32), jnp.zeros(BLOCK, jnp.float32)
    state: _State = (jnp.zeros((BLOCK, columns), jnp.float32), *nothing)
    state = lax.fori_loop(first, before, part, state)
    state = lax.fori_loop(inner, outer, whole, state)
    weighted, _, total = lax.fori_loop(jnp.maximum(outer, before), end, part, state)
    inside = (query < tokens)[:, None] & (column < size)[None, :]
    result = (weighted / jnp.where(total == 0.0, 1.0, total)[:, None]).astype(out_ref.dtype)
    plgpu.store(out_ref.at[query[:, None], head, column[None, :]], result, mask=inside)


def _dot(a: jax.Array, b: jax.Array, *, transposed: bool = False) -> jax.Array:
    """A product with a float32 result: float32 numbers are multiplied as such, not as TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    product: Callable[..., jax.Array] = plgpu.dot
    return product(a, b, trans_b=transposed, precision=precision)
