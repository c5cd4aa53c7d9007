"""Attention of rows of a few tokens, as decodes with drafts are, in plain XLA operations.

Several rows are a block, as they are of decodes, and all queries of a row go through its keys together. As chunks of a
prompt each row would be a block of its own, of many times as many queries.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import ShortRows
from jaxllm.pallas_kernels.xla_common.blockwise import Blocks, Pages, attend_block, count_blocks, slice_of
from jaxllm.pallas_kernels.xla_common.softmax import Heads, SoftmaxState


def short_by_blocks(
    q: jax.Array,
    out: jax.Array,
    pages: Pages,
    batch: RaggedBatch,
    short: ShortRows,
    starts: jax.Array,
    heads: Heads,
    blocks: Blocks,
) -> jax.Array:
    """Fill in the short rows after the decodes, block by block of rows; arguments as in `prefill_by_blocks`."""
    tokens, rows = q.shape[0], batch.kv_lens.shape[0]
    size = min(max(blocks.decode_rows // short.most, 1), rows)
    block_pages = pages.block_pages(blocks.decode_keys)
    table = pages.padded_table(block_pages)

    def block(index: jax.Array, out: jax.Array) -> jax.Array:
        row = batch.num_decodes + index * size + jnp.arange(size, dtype=jnp.int32)
        is_row, row = row < short.rows, jnp.minimum(row, rows - 1)
        token = batch.query_start[row, None] + jnp.arange(short.most, dtype=jnp.int32)
        is_token = is_row[:, None] & (token < batch.query_start[row + 1, None])
        token = jnp.minimum(token, tokens - 1)
        # What is no token sees nothing.
        ends = jnp.where(is_token, batch.positions[token] + 1, 0)
        attended = _attend(q[token], table[row], starts[token], ends, pages, block_pages, heads)
        return out.at[jnp.where(is_token, token, tokens)].set(attended.astype(out.dtype), mode="drop")

    count = count_blocks(jnp.maximum(short.rows - batch.num_decodes, 0), size)
    return lax.fori_loop(0, count, block, out)


def _attend(
    queries: jax.Array,
    table: jax.Array,
    starts: jax.Array,
    ends: jax.Array,
    pages: Pages,
    block_pages: int,
    heads: Heads,
) -> jax.Array:
    """One block of rows, [B, M, N, H], over all their pages: [B, M, N, V].

    Each query sees the keys from its own of `starts` [B, M] on, up to the one of `ends` [B, M].
    """
    size, most, keys = *queries.shape[:2], block_pages * pages.page_size
    grouped = queries.reshape(size, most, heads.num_kv_heads, heads.group, -1).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(size, heads.num_kv_heads, heads.group * most, -1)
    sinks = None if heads.sinks is None else heads.repeat_per_query(heads.sinks, most)
    slopes = None if heads.alibi_slopes is None else heads.repeat_per_query(heads.alibi_slopes, most)[..., None]

    def visit(index: jax.Array, run: SoftmaxState) -> SoftmaxState:
        tables = slice_of(table, index * block_pages, block_pages, axis=1)
        positions = index * keys + jnp.arange(keys, dtype=jnp.int32)
        visible = (positions < ends[..., None]) & (positions >= starts[..., None])
        distances = positions - (ends[..., None] - 1)
        visible, distances = (jnp.tile(each, (1, heads.group, 1))[:, None] for each in (visible, distances))
        return attend_block(grouped, tables, visible, distances, slopes, run, pages, heads)

    run = heads.start(sinks, (size, heads.num_kv_heads, heads.group * most))
    first = jnp.min(jnp.where(ends > 0, starts, jnp.iinfo(jnp.int32).max))
    run = lax.fori_loop(lax.div(first, jnp.int32(keys)), count_blocks(ends.max(), keys), visit, run)
    attended = heads.finish(run).reshape(size, heads.num_kv_heads, heads.group, most, heads.value_size)
    return attended.transpose(0, 3, 1, 2, 4).reshape(size, most, heads.num_heads, heads.value_size)
