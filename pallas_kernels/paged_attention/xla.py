"""Paged attention in plain XLA operations, fast on CPU and correct everywhere.

Decodes are computed in blocks of rows, prefill chunks row by row in blocks of queries. Both walk the pages in blocks
with an online softmax ("FlashAttention", arXiv 2205.14135) and stop at the longest context present, so that short
contexts cost little, whatever the width of the page table.

All KV heads of a block are handled in one matrix product with block-diagonal queries: the interleaved keys and values
are read as they lie in memory. On CPU this beats strided or transposed reads, although most products are with zeros.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch, window_start, write_kv

MASKED = -1e30
"""Score of an invisible key. Finite, so that a block without any visible key leaves no NaN."""

DECODE_ROWS = 16
DECODE_KEYS = 128
PREFILL_QUERIES = 64
PREFILL_KEYS = 256
"""Block sizes, in rows or tokens. Chosen on a 2-core AVX2 machine."""


def _slice(array: jax.Array, start: jax.Array, size: int, axis: int = 0) -> jax.Array:
    """`size` entries along `axis`. Unlike `lax.dynamic_slice_in_dim` it spends no operations on negative starts."""
    starts = [jnp.int32(0)] * array.ndim
    starts[axis] = start
    sizes = [*array.shape]
    sizes[axis] = size
    return lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)


def _update(array: jax.Array, block: jax.Array, start: jax.Array) -> jax.Array:
    """`array` with `block` put at `start` of its first axis."""
    starts = [start, *[jnp.int32(0)] * (array.ndim - 1)]
    return lax.dynamic_update_slice(array, block, starts, allow_negative_indices=False)


def _blocks(total: jax.Array, size: int) -> jax.Array:
    """Number of blocks of `size` that hold `total`, which is not negative (`//` would spend operations on that)."""
    return lax.div(total + (size - 1), jnp.int32(size))


class _Running(NamedTuple):
    """State of an online softmax."""

    maximum: jax.Array
    total: jax.Array
    weighted: jax.Array


@dataclass(frozen=True)
class _Heads:
    """Head counts, and what is done to scores and values."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float | jax.Array
    """Of queries times stored keys."""
    soft_cap: float | None
    sinks: jax.Array | None
    alibi_slopes: jax.Array | None
    v_scale: jax.Array | None

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def scores(self, products: jax.Array, slopes: jax.Array | None, distances: jax.Array) -> jax.Array:
        """Scores from `products`; `slopes` and `distances` (key position minus query position) broadcast to them."""
        scores = products.astype(jnp.float32) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        return scores if slopes is None else scores + slopes * distances.astype(jnp.float32)

    def by_query(self, per_head: jax.Array, queries: int) -> jax.Array:
        """A value per head [N] as [K, G * queries]."""
        return jnp.repeat(per_head.reshape(self.num_kv_heads, self.group), queries, axis=1)

    def start(self, sinks: jax.Array | None, shape: tuple[int, ...], size: int) -> _Running:
        """A softmax over `shape`, with values of `size`, that has seen only the sinks, which broadcast to `shape`."""
        weighted = jnp.zeros((*shape, size), jnp.float32)
        if sinks is None:
            return _Running(jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), weighted)
        return _Running(jnp.broadcast_to(sinks, shape), jnp.ones(shape, jnp.float32), weighted)

    def finish(self, weighted: jax.Array, total: jax.Array) -> jax.Array:
        """Weighted sums of stored values as results."""
        attended = weighted / jnp.maximum(total, 1e-30)[..., None]
        return attended if self.v_scale is None else attended * self.v_scale


def xla_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    *,
    scale: float,
    window: int | jax.Array | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    k_scale: float | jax.Array | None = None,
    v_scale: float | jax.Array | None = None,
    flat_pages: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`.

    With `flat_pages` a page is gathered as one vector. CPUs do that twice as fast; on TPUs, which tile the last two
    dimensions, it would copy the cache.
    """
    kv_cache = write_kv(kv_cache, k, v, layer, batch, k_scale, v_scale)
    layers, pages, page_size, twice_kv_heads, head_size = kv_cache.shape
    sinks, alibi_slopes, k_scale, v_scale = (
        None if value is None else jnp.asarray(value, jnp.float32) for value in (sinks, alibi_slopes, k_scale, v_scale)
    )
    # The key scale goes into the scores and the value scale into the result: both once, not for every key.
    scale_of_stored = scale if k_scale is None else scale * k_scale
    heads = _Heads(q.shape[1], twice_kv_heads // 2, head_size, scale_of_stored, soft_cap, sinks, alibi_slopes, v_scale)
    page_shape = (page_size * twice_kv_heads * head_size,) if flat_pages else kv_cache.shape[2:]
    flat = kv_cache.reshape(layers * pages, *page_shape)
    starts = window_start(batch.positions, window)
    context = _Context(flat, jnp.asarray(layer * pages, jnp.int32), page_size, batch.page_table)
    out = _decode(q, context, batch, starts, heads)
    if q.shape[0] > 1:
        out = _prefill(q, out, context, batch, starts, heads)
    return out, kv_cache


@dataclass(frozen=True)
class _Context:
    """The pages of one layer, and the table that finds them."""

    flat: jax.Array
    """[L * P, C * 2K * H], or [L * P, C, 2K, H]."""
    first_page: jax.Array
    page_size: int
    page_table: jax.Array
    """[R, W]."""

    def block_pages(self, block_keys: int) -> int:
        """Pages in a block of about `block_keys` keys; no more than the table is wide."""
        return min(max(block_keys // self.page_size, 1), self.page_table.shape[1])

    def padded_table(self, block_pages: int) -> jax.Array:
        """The table, wide enough that every block slice lies inside it."""
        return jnp.pad(self.page_table, ((0, 0), (0, -self.page_table.shape[1] % block_pages)))

    def gather(self, tables: jax.Array) -> jax.Array:
        """Keys and values of the pages in `tables` [rows, pages] as [rows, pages * C, 2K * H]."""
        # Trusted indices make XLA's CPU gather of flat pages a memory copy: 5 times faster than the default.
        kv = self.flat.at[(self.first_page + tables).reshape(-1)].get(mode="promise_in_bounds")
        return kv.reshape(tables.shape[0], tables.shape[1] * self.page_size, -1)


def _decode(q: jax.Array, context: _Context, batch: RaggedBatch, starts: jax.Array, heads: _Heads) -> jax.Array:
    """Attention of the leading single-token rows; [T, N, H], zero for all others."""
    rows = min(q.shape[0], batch.kv_lens.shape[0])
    block_rows = min(DECODE_ROWS, rows)
    padding = -rows % block_rows
    block_pages = context.block_pages(DECODE_KEYS)
    table = jnp.pad(context.padded_table(block_pages), ((0, padding), (0, 0)))
    is_decode = jnp.arange(rows + padding, dtype=jnp.int32) < batch.num_decodes
    kv_lens = jnp.where(is_decode, jnp.pad(batch.kv_lens[:rows], (0, padding)), 0)
    starts = jnp.where(is_decode, jnp.pad(starts[:rows], (0, padding)), 0)
    queries = jnp.pad(q[:rows], ((0, padding), (0, 0), (0, 0)))

    def block(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * block_rows
        attended = _decode_block(
            _slice(queries, first, block_rows),
            _slice(table, first, block_rows),
            _slice(kv_lens, first, block_rows),
            _slice(starts, first, block_rows),
            context,
            block_pages,
            heads,
        )
        return _update(out, attended.astype(out.dtype), first)

    out = jnp.zeros((max(rows + padding, q.shape[0]), *q.shape[1:]), q.dtype)
    return lax.fori_loop(0, _blocks(batch.num_decodes, block_rows), block, out)[: q.shape[0]]


def _decode_block(
    queries: jax.Array,
    table: jax.Array,
    kv_lens: jax.Array,
    starts: jax.Array,
    context: _Context,
    block_pages: int,
    heads: _Heads,
) -> jax.Array:
    """One block of rows, [B, N, H], over all their pages."""
    size, keys = queries.shape[0], block_pages * context.page_size
    # The query of head n, placed where its key head lies among the 2K interleaved heads.
    place = jnp.asarray(np.eye(2 * heads.num_kv_heads)[::2].repeat(heads.group, axis=0), queries.dtype)
    spread = jnp.einsum("bnh,nj->bnjh", queries, place).reshape(size, heads.num_heads, -1)

    def visit(index: jax.Array, run: _Running) -> _Running:
        kv = context.gather(_slice(table, index * block_pages, block_pages, axis=1))
        kv = kv.astype(queries.dtype)
        positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        distances = positions[:, None] - (kv_lens - 1)[:, None, None]
        scores = heads.scores(jnp.einsum("bsx,bnx->bsn", kv, spread), heads.alibi_slopes, distances)
        visible = (positions < kv_lens[:, None]) & (positions >= starts[:, None])
        scores = jnp.where(visible[..., None], scores, MASKED)
        maximum = jnp.maximum(run.maximum, scores.max(axis=1))
        weights = jnp.where(visible[..., None], jnp.exp(scores - maximum[:, None]), 0.0)
        decay = jnp.exp(run.maximum - maximum)
        weighted = jnp.einsum("bsn,bsx->bnx", weights.astype(kv.dtype), kv)
        return _Running(
            maximum,
            run.total * decay + weights.sum(axis=1),
            run.weighted * decay[..., None] + weighted.astype(jnp.float32),
        )

    run = heads.start(heads.sinks, (size, heads.num_heads), 2 * heads.num_kv_heads * heads.head_size)
    first = jnp.min(jnp.where(kv_lens > 0, starts, jnp.iinfo(jnp.int32).max))
    run = lax.fori_loop(lax.div(first, jnp.int32(keys)), _blocks(kv_lens.max(), keys), visit, run)
    pairs = run.weighted.reshape(size, heads.num_kv_heads, heads.group, heads.num_kv_heads, 2, heads.head_size)
    values = jnp.concatenate([pairs[:, k, :, k, 1] for k in range(heads.num_kv_heads)], axis=1)
    return heads.finish(values, run.total)


def _prefill(
    q: jax.Array, out: jax.Array, context: _Context, batch: RaggedBatch, starts: jax.Array, heads: _Heads
) -> jax.Array:
    """Fill in the rows after the decodes, block by block of queries."""
    tokens = q.shape[0]
    size = min(PREFILL_QUERIES, tokens)
    block_pages = context.block_pages(PREFILL_KEYS)
    table = context.padded_table(block_pages)
    # A last block may reach beyond the tokens; later rows overwrite what an earlier one left behind its own end.
    queries = jnp.pad(q, ((0, size), (0, 0), (0, 0)))
    positions = jnp.pad(batch.positions, (0, size))
    starts = jnp.pad(starts, (0, size))

    def row(index: jax.Array, out: jax.Array) -> jax.Array:
        begin, end = _slice(batch.query_start, index, 2)
        row_table = _slice(table, index, 1)

        def block(number: jax.Array, out: jax.Array) -> jax.Array:
            first = begin + number * size
            last = jnp.minimum(first + size, end) - 1
            attended = _prefill_block(
                _slice(queries, first, size),
                _slice(positions, first, size),
                _slice(starts, first, size),
                _slice(starts, first, 1)[0],
                _slice(positions, last, 1)[0] + 1,
                row_table,
                context,
                block_pages,
                heads,
            )
            return _update(out, attended.astype(out.dtype), first)

        return lax.fori_loop(0, _blocks(end - begin, size), block, out)

    out = jnp.pad(out, ((0, size), (0, 0), (0, 0)))
    return lax.fori_loop(batch.num_decodes, batch.num_requests, row, out)[:tokens]


def _prefill_block(
    queries: jax.Array,
    positions: jax.Array,
    starts: jax.Array,
    first_key: jax.Array,
    end_key: jax.Array,
    table: jax.Array,
    context: _Context,
    block_pages: int,
    heads: _Heads,
) -> jax.Array:
    """One block of queries [B, N, H] of a single row against its keys from `first_key` to `end_key`."""
    size, keys = queries.shape[0], block_pages * context.page_size
    grouped = queries.reshape(size, heads.num_kv_heads, heads.group, heads.head_size)
    grouped = grouped.transpose(1, 2, 0, 3).reshape(heads.num_kv_heads, heads.group * size, heads.head_size)
    sinks = None if heads.sinks is None else heads.by_query(heads.sinks, size)
    slopes = None if heads.alibi_slopes is None else heads.by_query(heads.alibi_slopes, size)[..., None]

    def visit(index: jax.Array, run: _Running) -> _Running:
        kv = context.gather(_slice(table, index * block_pages, block_pages, axis=1))
        kv = kv.reshape(keys, heads.num_kv_heads, 2, heads.head_size).astype(queries.dtype)
        key_positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        distances = jnp.tile(key_positions - positions[:, None], (heads.group, 1))
        scores = heads.scores(jnp.einsum("kqh,skh->kqs", grouped, kv[:, :, 0]), slopes, distances)
        visible = (key_positions <= positions[:, None]) & (key_positions >= starts[:, None])
        visible = jnp.tile(visible, (heads.group, 1))
        scores = jnp.where(visible, scores, MASKED)
        maximum = jnp.maximum(run.maximum, scores.max(axis=-1))
        weights = jnp.where(visible, jnp.exp(scores - maximum[..., None]), 0.0)
        decay = jnp.exp(run.maximum - maximum)
        weighted = jnp.einsum("kqs,skh->kqh", weights.astype(kv.dtype), kv[:, :, 1])
        return _Running(
            maximum,
            run.total * decay + weights.sum(axis=-1),
            run.weighted * decay[..., None] + weighted.astype(jnp.float32),
        )

    run = heads.start(sinks, (heads.num_kv_heads, heads.group * size), heads.head_size)
    run = lax.fori_loop(lax.div(first_key, jnp.int32(keys)), _blocks(end_key, keys), visit, run)
    attended = heads.finish(run.weighted, run.total)
    attended = attended.reshape(heads.num_kv_heads, heads.group, size, heads.head_size)
    return attended.transpose(2, 0, 1, 3).reshape(queries.shape)
