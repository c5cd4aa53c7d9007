"""Paged attention in plain XLA operations, fast on CPU and correct everywhere.

Decodes are computed in blocks of rows, prefill chunks row by row in blocks of queries. Both walk the pages in blocks
with an online softmax ("FlashAttention", arXiv 2205.14135) and stop at the longest context present, so that short
contexts cost little, whatever the width of the page table.

In a page of the cache the tokens of one head lie together (`head_major_shape`), so that gathered keys and values are
operands of a batched matrix product as they are.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.backend import Backend
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch, window_start, write_head_major
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major, head_major_shape

MASKED = -1e30
"""Score of an invisible key. Finite, so that a block without any visible key leaves no NaN."""


class Blocks(NamedTuple):
    """Sizes of blocks, in rows or tokens."""

    decode_rows: int
    decode_keys: int
    prefill_queries: int
    prefill_keys: int


SMALL = Blocks(decode_rows=4, decode_keys=128, prefill_queries=128, prefill_keys=128)
"""Chosen on machines of two cores: blocks of few rows waste little on padding and on rows of other lengths, and what is
gathered for them stays in the cache until it is used."""

LARGE = Blocks(decode_rows=64, decode_keys=512, prefill_queries=512, prefill_keys=1024)
"""For GPUs. Each block is some launches and one look of the host at whether it was the last, which takes longer than
the work of a small one."""


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

    def start(self, sinks: jax.Array | None, shape: tuple[int, ...]) -> _Running:
        """A softmax over `shape` that has seen only the sinks, which broadcast to `shape`."""
        weighted = jnp.zeros((*shape, self.head_size), jnp.float32)
        if sinks is None:
            return _Running(jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), weighted)
        return _Running(jnp.broadcast_to(sinks, shape), jnp.ones(shape, jnp.float32), weighted)

    def finish(self, run: _Running) -> jax.Array:
        """Weighted sums of stored values as results."""
        attended = run.weighted / jnp.maximum(run.total, 1e-30)[..., None]
        return attended if self.v_scale is None else attended * self.v_scale


def xla_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. The cache is [L, P, 2, K, C, H]."""
    kv_cache = write_head_major(kv_cache, k, v, layer, batch, options.k_scale, options.v_scale)
    _, _, _, num_kv_heads, page_size, head_size = kv_cache.shape
    sinks, alibi_slopes, k_scale, v_scale = (
        None if value is None else jnp.asarray(value, jnp.float32)
        for value in (options.sinks, options.alibi_slopes, options.k_scale, options.v_scale)
    )
    # The key scale goes into the scores and the value scale into the result: both once, not for every key.
    scale = options.scale if k_scale is None else options.scale * k_scale
    heads = _Heads(q.shape[1], num_kv_heads, head_size, scale, options.soft_cap, sinks, alibi_slopes, v_scale)
    starts = window_start(batch.positions, options.window)
    context = _Context(kv_cache, jnp.asarray(layer, jnp.int32), page_size, batch.page_table)

    def attend(q: jax.Array, blocks: Blocks) -> jax.Array:
        out = _decode(q, context, batch, starts, heads, blocks)
        return out if q.shape[0] == 1 else _prefill(q, out, context, batch, starts, heads, blocks)

    small, large = partial(attend, blocks=SMALL), partial(attend, blocks=LARGE)
    return lax.platform_dependent(q, cuda=large, rocm=large, default=small), kv_cache


@dataclass(frozen=True)
class _Context:
    """The pages of one layer, and the table that finds them."""

    kv_cache: jax.Array
    """[L, P, 2, K, C, H]."""
    layer: jax.Array
    page_size: int
    page_table: jax.Array
    """[R, W]."""

    def block_pages(self, block_keys: int) -> int:
        """Pages in a block of about `block_keys` keys; no more than the table is wide."""
        return min(max(block_keys // self.page_size, 1), self.page_table.shape[1])

    def padded_table(self, block_pages: int) -> jax.Array:
        """The table, wide enough that every block slice lies inside it."""
        return jnp.pad(self.page_table, ((0, 0), (0, -self.page_table.shape[1] % block_pages)))

    def gather(self, tables: jax.Array, which: int) -> jax.Array:
        """Keys (`which` 0) or values (1) of the pages in `tables` [B, pages] as [B, K, pages * C, H]."""
        num_kv_heads, head_size = self.kv_cache.shape[3], self.kv_cache.shape[5]
        each_head = jnp.arange(num_kv_heads, dtype=jnp.int32)[:, None]
        # Indices of every axis, and no reshape of the cache: that would copy it where there is one KV head. Trusted
        # indices make XLA's CPU gather a memory copy: 5 times faster than the default.
        place = self.kv_cache.at[self.layer, tables[:, None, :], which, each_head]
        return place.get(mode="promise_in_bounds").reshape(tables.shape[0], num_kv_heads, -1, head_size)


def _decode(
    q: jax.Array, context: _Context, batch: RaggedBatch, starts: jax.Array, heads: _Heads, blocks: Blocks
) -> jax.Array:
    """Attention of the leading single-token rows; [T, N, H], zero for all others."""
    rows = min(q.shape[0], batch.kv_lens.shape[0])
    block_rows = min(blocks.decode_rows, rows)
    padding = -rows % block_rows
    block_pages = context.block_pages(blocks.decode_keys)
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
    grouped = queries.reshape(size, heads.num_kv_heads, heads.group, heads.head_size)
    sinks = None if heads.sinks is None else heads.by_query(heads.sinks, 1)
    slopes = None if heads.alibi_slopes is None else heads.by_query(heads.alibi_slopes, 1)[..., None]

    def visit(index: jax.Array, run: _Running) -> _Running:
        tables = _slice(table, index * block_pages, block_pages, axis=1)
        positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        distances = (positions - (kv_lens - 1)[:, None])[:, None, None]
        visible = (positions < kv_lens[:, None]) & (positions >= starts[:, None])
        return _attend_block(grouped, tables, visible[:, None, None], distances, slopes, run, context, heads)

    run = heads.start(sinks, (size, heads.num_kv_heads, heads.group))
    first = jnp.min(jnp.where(kv_lens > 0, starts, jnp.iinfo(jnp.int32).max))
    run = lax.fori_loop(lax.div(first, jnp.int32(keys)), _blocks(kv_lens.max(), keys), visit, run)
    return heads.finish(run).reshape(queries.shape)


def _attend_block(
    queries: jax.Array,
    tables: jax.Array,
    visible: jax.Array,
    distances: jax.Array,
    slopes: jax.Array | None,
    run: _Running,
    context: _Context,
    heads: _Heads,
) -> _Running:
    """`run` after the keys S in the pages of `tables` [B, pages], for `queries` [B, K, Q, H].

    `visible` and `distances` (see `_Heads.scores`) broadcast to [B, K, Q, S], `slopes` too.
    """
    keys = context.gather(tables, 0).astype(queries.dtype)
    products = jnp.einsum("bkqh,bksh->bkqs", queries, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(visible, heads.scores(products, slopes, distances), MASKED)
    maximum = jnp.maximum(run.maximum, scores.max(axis=-1))
    # What an unseen key weighs before any was seen is wiped out by the first that is: `decay` is then 0.
    weights = jnp.exp(scores - maximum[..., None])
    decay = jnp.exp(run.maximum - maximum)
    values = context.gather(tables, 1).astype(queries.dtype)
    weighted = jnp.einsum("bkqs,bksh->bkqh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return _Running(maximum, run.total * decay + weights.sum(axis=-1), run.weighted * decay[..., None] + weighted)


def _prefill(
    q: jax.Array,
    out: jax.Array,
    context: _Context,
    batch: RaggedBatch,
    starts: jax.Array,
    heads: _Heads,
    blocks: Blocks,
) -> jax.Array:
    """Fill in the rows after the decodes, block by block of queries."""
    tokens = q.shape[0]
    size = min(blocks.prefill_queries, tokens)
    block_pages = context.block_pages(blocks.prefill_keys)
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
    grouped = grouped.transpose(1, 2, 0, 3).reshape(1, heads.num_kv_heads, heads.group * size, heads.head_size)
    sinks = None if heads.sinks is None else heads.by_query(heads.sinks, size)
    slopes = None if heads.alibi_slopes is None else heads.by_query(heads.alibi_slopes, size)[..., None]

    def visit(index: jax.Array, run: _Running) -> _Running:
        tables = _slice(table, index * block_pages, block_pages, axis=1)
        key_positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        distances = jnp.tile(key_positions - positions[:, None], (heads.group, 1))
        visible = (key_positions <= positions[:, None]) & (key_positions >= starts[:, None])
        visible = jnp.tile(visible, (heads.group, 1))
        return _attend_block(grouped, tables, visible, distances, slopes, run, context, heads)

    run = heads.start(sinks, (1, heads.num_kv_heads, heads.group * size))
    run = lax.fori_loop(lax.div(first_key, jnp.int32(keys)), _blocks(end_key, keys), visit, run)
    attended = heads.finish(run).reshape(heads.num_kv_heads, heads.group, size, heads.head_size)
    return attended.transpose(2, 0, 1, 3).reshape(queries.shape)


BACKEND = Backend(
    xla_paged_attention,
    head_major_shape,
    from_canonical=head_major,
    to_canonical=lambda cache, page_size: canonical(cache),
)
