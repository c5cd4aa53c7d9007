"""Attention in plain XLA operations, blocked over queries and keys, whatever the pages of a cache hold.

Decodes are computed in blocks of rows, prefill chunks row by row in blocks of queries. Both walk the pages in blocks
with an online softmax ("FlashAttention", arXiv 2205.14135) and stop at the longest context present, so that short
contexts cost little, whatever the width of the page table.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.xla_common.softmax import MASKED, Heads, SoftmaxState


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


def slice_of(array: jax.Array, start: jax.Array, size: int, axis: int = 0) -> jax.Array:
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


def count_blocks(total: jax.Array, size: int) -> jax.Array:
    """Number of blocks of `size` that hold `total`, which is not negative (`//` would spend operations on that)."""
    return lax.div(total + (size - 1), jnp.int32(size))


class Part(NamedTuple):
    """Stored keys or values [B, K, S, H], and where each has a scale of its own, these: float32 [B, K, S]."""

    stored: jax.Array
    scales: jax.Array | None = None


@dataclass(frozen=True)
class Pages(ABC):
    """The pages of one layer, and the table that finds them."""

    kv_cache: jax.Array
    layer: jax.Array
    page_size: int
    page_table: jax.Array
    """[R, W]."""

    @abstractmethod
    def keys(self, tables: jax.Array) -> Part:
        """Keys of the pages in `tables` [B, pages] as [B, K, pages * C, H]."""

    @abstractmethod
    def values(self, tables: jax.Array, keys: Part) -> Part:
        """Values likewise, of the size that `Heads` says; `keys` are what `keys` gave for these tables."""

    def block_pages(self, block_keys: int) -> int:
        """Pages in a block of about `block_keys` keys; no more than the table is wide."""
        return min(max(block_keys // self.page_size, 1), self.page_table.shape[1])

    def padded_table(self, block_pages: int) -> jax.Array:
        """The table, wide enough that every block slice lies inside it."""
        return jnp.pad(self.page_table, ((0, 0), (0, -self.page_table.shape[1] % block_pages)))


def decode_by_blocks(
    q: jax.Array, pages: Pages, batch: RaggedBatch, starts: jax.Array, heads: Heads, blocks: Blocks
) -> jax.Array:
    """Attention of the leading single-token rows; [T, N, V], zero for all others."""
    rows = min(q.shape[0], batch.kv_lens.shape[0])
    block_rows = min(blocks.decode_rows, rows)
    padding = -rows % block_rows
    block_pages = pages.block_pages(blocks.decode_keys)
    table = jnp.pad(pages.padded_table(block_pages), ((0, padding), (0, 0)))
    is_decode = jnp.arange(rows + padding, dtype=jnp.int32) < batch.num_decodes
    kv_lens = jnp.where(is_decode, jnp.pad(batch.kv_lens[:rows], (0, padding)), 0)
    starts = jnp.where(is_decode, jnp.pad(starts[:rows], (0, padding)), 0)
    queries = jnp.pad(q[:rows], ((0, padding), (0, 0), (0, 0)))

    def block(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * block_rows
        attended = _decode_block(
            slice_of(queries, first, block_rows),
            slice_of(table, first, block_rows),
            slice_of(kv_lens, first, block_rows),
            slice_of(starts, first, block_rows),
            pages,
            block_pages,
            heads,
        )
        return _update(out, attended.astype(out.dtype), first)

    out = jnp.zeros((max(rows + padding, q.shape[0]), q.shape[1], heads.value_size), q.dtype)
    return lax.fori_loop(0, count_blocks(batch.num_decodes, block_rows), block, out)[: q.shape[0]]


def _decode_block(
    queries: jax.Array,
    table: jax.Array,
    kv_lens: jax.Array,
    starts: jax.Array,
    pages: Pages,
    block_pages: int,
    heads: Heads,
) -> jax.Array:
    """One block of rows, [B, N, H], over all their pages: [B, N, V]."""
    size, keys = queries.shape[0], block_pages * pages.page_size
    grouped = queries.reshape(size, heads.num_kv_heads, heads.group, -1)
    sinks = None if heads.sinks is None else heads.repeat_per_query(heads.sinks, 1)
    slopes = None if heads.alibi_slopes is None else heads.repeat_per_query(heads.alibi_slopes, 1)[..., None]

    def visit(index: jax.Array, run: SoftmaxState) -> SoftmaxState:
        tables = slice_of(table, index * block_pages, block_pages, axis=1)
        positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        distances = (positions - (kv_lens - 1)[:, None])[:, None, None]
        visible = (positions < kv_lens[:, None]) & (positions >= starts[:, None])
        return attend_block(grouped, tables, visible[:, None, None], distances, slopes, run, pages, heads)

    run = heads.start(sinks, (size, heads.num_kv_heads, heads.group))
    first = jnp.min(jnp.where(kv_lens > 0, starts, jnp.iinfo(jnp.int32).max))
    run = lax.fori_loop(lax.div(first, jnp.int32(keys)), count_blocks(kv_lens.max(), keys), visit, run)
    return heads.finish(run).reshape(size, heads.num_heads, heads.value_size)


def attend_block(
    queries: jax.Array,
    tables: jax.Array,
    visible: jax.Array,
    distances: jax.Array,
    slopes: jax.Array | None,
    run: SoftmaxState,
    pages: Pages,
    heads: Heads,
) -> SoftmaxState:
    """`run` after the keys S in the pages of `tables` [B, pages], for `queries` [B, K, Q, H].

    `visible` and `distances` (see `Heads.scores`) broadcast to [B, K, Q, S], `slopes` too.
    """
    keys = pages.keys(tables)
    stored = keys.stored.astype(queries.dtype)
    products = jnp.einsum("bkqh,bksh->bkqs", queries, stored, preferred_element_type=jnp.float32)
    if keys.scales is not None:
        products *= keys.scales[:, :, None]
    scores = jnp.where(visible, heads.scores(products, slopes, distances), MASKED)
    maximum = jnp.maximum(run.maximum, scores.max(axis=-1))
    # What an unseen key weighs before any was seen is wiped out by the first that is: `decay` is then 0.
    weights = jnp.exp(scores - maximum[..., None])
    decay = jnp.exp(run.maximum - maximum)
    values = pages.values(tables, keys)
    scaled = weights if values.scales is None else weights * values.scales[:, :, None]
    stored = values.stored.astype(queries.dtype)
    weighted = jnp.einsum("bkqs,bksh->bkqh", scaled.astype(stored.dtype), stored, preferred_element_type=jnp.float32)
    return SoftmaxState(maximum, run.total * decay + weights.sum(axis=-1), run.weighted * decay[..., None] + weighted)


def prefill_by_blocks(
    q: jax.Array,
    out: jax.Array,
    pages: Pages,
    batch: RaggedBatch,
    first_row: jax.Array,
    starts: jax.Array,
    heads: Heads,
    blocks: Blocks,
) -> jax.Array:
    """Fill in the rows from `first_row` on, block by block of queries."""
    tokens = q.shape[0]
    size = min(blocks.prefill_queries, tokens)
    block_pages = pages.block_pages(blocks.prefill_keys)
    table = pages.padded_table(block_pages)
    # A last block may reach beyond the tokens; later rows overwrite what an earlier one wrote past its own end.
    queries = jnp.pad(q, ((0, size), (0, 0), (0, 0)))
    positions = jnp.pad(batch.positions, (0, size))
    starts = jnp.pad(starts, (0, size))
    until = None if batch.visible_until is None else jnp.pad(batch.visible_until, (0, size))

    def row(index: jax.Array, out: jax.Array) -> jax.Array:
        begin, end = slice_of(batch.query_start, index, 2)
        row_table = slice_of(table, index, 1)

        def block(number: jax.Array, out: jax.Array) -> jax.Array:
            first = begin + number * size
            last = jnp.minimum(first + size, end) - 1
            ends = None if until is None else slice_of(until, first, size)
            attended = _prefill_block(
                slice_of(queries, first, size),
                slice_of(positions, first, size),
                slice_of(starts, first, size),
                ends,
                slice_of(starts, first, 1)[0],
                slice_of(positions, last, 1)[0] + 1 if ends is None else _furthest(ends, last + 1 - first),
                row_table,
                pages,
                block_pages,
                heads,
            )
            return _update(out, attended.astype(out.dtype), first)

        return lax.fori_loop(0, count_blocks(end - begin, size), block, out)

    out = jnp.pad(out, ((0, size), (0, 0), (0, 0)))
    return lax.fori_loop(first_row, batch.num_requests, row, out)[:tokens]


def _furthest(ends: jax.Array, count: jax.Array) -> jax.Array:
    """The largest of the first `count` of `ends` [B]."""
    return jnp.where(jnp.arange(len(ends), dtype=jnp.int32) < count, ends, 0).max()


def _prefill_block(
    queries: jax.Array,
    positions: jax.Array,
    starts: jax.Array,
    ends: jax.Array | None,
    first_key: jax.Array,
    end_key: jax.Array,
    table: jax.Array,
    pages: Pages,
    block_pages: int,
    heads: Heads,
) -> jax.Array:
    """One block of queries [B, N, H] of a single row against its keys from `first_key` to `end_key`: [B, N, V].

    Each sees the keys from its own of `starts` [B] on, up to the one of `ends` [B]; None: up to itself.
    """
    size, keys = queries.shape[0], block_pages * pages.page_size
    grouped = queries.reshape(size, heads.num_kv_heads, heads.group, -1)
    grouped = grouped.transpose(1, 2, 0, 3).reshape(1, heads.num_kv_heads, heads.group * size, -1)
    sinks = None if heads.sinks is None else heads.repeat_per_query(heads.sinks, size)
    slopes = None if heads.alibi_slopes is None else heads.repeat_per_query(heads.alibi_slopes, size)[..., None]

    def visit(index: jax.Array, run: SoftmaxState) -> SoftmaxState:
        tables = slice_of(table, index * block_pages, block_pages, axis=1)
        key_positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        distances = jnp.tile(key_positions - positions[:, None], (heads.group, 1))
        seen = key_positions <= positions[:, None] if ends is None else key_positions < ends[:, None]
        visible = seen & (key_positions >= starts[:, None])
        visible = jnp.tile(visible, (heads.group, 1))
        return attend_block(grouped, tables, visible, distances, slopes, run, pages, heads)

    run = heads.start(sinks, (1, heads.num_kv_heads, heads.group * size))
    run = lax.fori_loop(lax.div(first_key, jnp.int32(keys)), count_blocks(end_key, keys), visit, run)
    attended = heads.finish(run).reshape(heads.num_kv_heads, heads.group, size, heads.value_size)
    return attended.transpose(2, 0, 1, 3).reshape(size, heads.num_heads, heads.value_size)
