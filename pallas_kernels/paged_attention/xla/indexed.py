"""Paged attention to the blocks of keys that an index chooses, in plain XLA operations.

For blocks of tokens, index keys of their requests are scored, and the best blocks of keys chosen. Then every KV head of
every token is a decode of its own, whose page table has the chosen blocks: the cost of attention is bounded, whatever
the context; that of scores grows with it, but they are small.

Nothing of a token depends on others: each is scored alone, and blocks are visited in the order of their positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import split_scales
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.xla_common.blockwise import Blocks, Pages, Part, decode_by_blocks
from jaxllm.pallas_kernels.xla_common.softmax import Heads
from jaxllm.pallas_kernels.xla_common.token_blocks import map_token_blocks

SMALL = Blocks(decode_rows=4, decode_keys=128, prefill_queries=4, prefill_keys=128)
LARGE = Blocks(decode_rows=64, decode_keys=512, prefill_queries=64, prefill_keys=1024)
"""Blocks of attention (decodes), and of scores (prefill), on processors and on GPUs."""


@dataclass(frozen=True)
class IndexedCache:
    """One layer of a cache [L, P, 2, K + 1, C, H], or with `scale_bytes` after each head, and its page table."""

    kv_cache: jax.Array
    layer: jax.Array
    page_table: jax.Array
    """[R, W]."""
    scale_bytes: int

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self.kv_cache.shape[4]

    def find(self, rows: jax.Array, positions: jax.Array, which: int, heads: jax.Array) -> Part:
        """Keys (0) or values (1) of `heads` at positions of requests, all of one shape [...]: [..., H]."""
        column = jnp.minimum(lax.div(positions, jnp.int32(self.page_size)), self.page_table.shape[1] - 1)
        page = self.page_table.at[rows, column].get(mode="promise_in_bounds")
        place = self.kv_cache.at[self.layer, page, which, heads, lax.rem(positions, jnp.int32(self.page_size))]
        found = place.get(mode="promise_in_bounds")
        return Part(*split_scales(found, self.scale_bytes)) if self.scale_bytes else Part(found)


@dataclass(frozen=True)
class _ChosenBlocks(Pages):
    """Blocks in place of pages: an entry of a table is ((row of the request) * blocks + block) * KV heads + head."""

    cache: IndexedCache
    num_blocks: int
    num_kv_heads: int

    def keys(self, tables: jax.Array) -> Part:
        """See `Pages`."""
        return self._find(tables, 0)

    def values(self, tables: jax.Array, keys: Part) -> Part:
        """See `Pages`."""
        return self._find(tables, 1)

    def _find(self, tables: jax.Array, which: int) -> Part:
        blocks, heads = lax.div(tables, jnp.int32(self.num_kv_heads)), lax.rem(tables, jnp.int32(self.num_kv_heads))
        rows, block = lax.div(blocks, jnp.int32(self.num_blocks)), lax.rem(blocks, jnp.int32(self.num_blocks))
        inside = jnp.arange(self.page_size, dtype=jnp.int32)
        positions = block[..., None] * self.page_size + inside
        shape = positions.shape
        found = self.cache.find(
            jnp.broadcast_to(rows[..., None], shape), positions, which, jnp.broadcast_to(heads[..., None], shape)
        )
        scales = None if found.scales is None else _as_one_head(found.scales, shape)
        return Part(_as_one_head(found.stored, shape), scales)


def _as_one_head(found: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """[B, blocks, block, ...] as [B, 1, S, ...]."""
    return found.reshape(shape[0], 1, -1, *found.shape[3:])


def attend_to_blocks(q: jax.Array, cache: IndexedCache, batch: RaggedBatch, index: AnyIndex, heads: Heads) -> jax.Array:
    """Attention of every token to the blocks that `index` chooses, [T, N, H]; the cache has the new tokens already."""

    def attend(blocks: Blocks) -> Callable[[jax.Array, AnyIndex], jax.Array]:
        def run(q: jax.Array, index: AnyIndex) -> jax.Array:
            return _attend(q, cache, batch, _choose(cache, batch, index, blocks), index, heads, blocks)

        return run

    gpu = attend(LARGE)
    attended: jax.Array = lax.platform_dependent(q, index, cuda=gpu, rocm=gpu, default=attend(SMALL))
    return attended


def _attend(
    q: jax.Array,
    cache: IndexedCache,
    batch: RaggedBatch,
    chosen: jax.Array,
    index: AnyIndex,
    heads: Heads,
    blocks: Blocks,
) -> jax.Array:
    """Attention to `chosen` blocks [T, choices, most], in the order of their positions."""
    tokens, num_kv_heads, top = len(chosen), heads.num_kv_heads, index.most
    chosen = jnp.broadcast_to(chosen, (tokens, num_kv_heads, top))
    num_blocks = -(-cache.page_table.shape[1] * cache.page_size // index.block)
    own = lax.div(batch.positions, jnp.int32(index.block))[:, None]
    count = jnp.minimum(own + 1, index.limits(batch.positions)[:, None])
    last = jnp.take_along_axis(chosen, jnp.broadcast_to(count[..., None] - 1, (tokens, num_kv_heads, 1)), axis=2)
    # Of the token's own block it sees those up to itself; what comes after it in the table is not seen.
    beyond = index.block - 1 - lax.rem(batch.positions, jnp.int32(index.block))[:, None]
    lengths = count * index.block - jnp.where(last[..., 0] == own, beyond, 0)
    each_head = jnp.arange(num_kv_heads, dtype=jnp.int32)[:, None]
    # Those after a token's may be beyond the last one of all.
    inside = batch.token_rows[:, None, None] * num_blocks + jnp.minimum(chosen, num_blocks - 1)
    table = (inside * num_kv_heads + each_head).reshape(-1, top)
    order, decodes = jnp.arange(len(table) + 1, dtype=jnp.int32), batch.num_tokens * num_kv_heads
    rows = RaggedBatch(
        positions=jnp.zeros_like(order[1:]),
        token_rows=order[:-1],
        query_start=order,
        kv_lens=lengths.reshape(-1),
        page_table=table,
        num_tokens=decodes,
        num_decodes=decodes,
        num_requests=decodes,
    )
    pages = _ChosenBlocks(cache.kv_cache, cache.layer, index.block, table, cache, num_blocks, num_kv_heads)
    one = replace(heads, num_heads=heads.group, num_kv_heads=1)
    queries = q.reshape(len(table), one.num_heads, q.shape[2])
    return decode_by_blocks(queries, pages, rows, rows.positions, one, blocks).reshape(q.shape)


def _choose(cache: IndexedCache, batch: RaggedBatch, index: AnyIndex, blocks: Blocks) -> jax.Array:
    """The blocks that each token sees, int32 [T, choices, most], ascending; after them come later ones."""
    shape = len(index.query), index.choices, index.most
    size = min(blocks.prefill_queries, shape[0])

    def block(arrays: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        query, positions, rows = arrays
        own = replace(index, query=query)
        every = jnp.broadcast_to(jnp.arange(index.most, dtype=jnp.int32), (size, *shape[1:]))
        # Short contexts cost nothing; their tokens see every block whether these are scored or not.
        is_short = positions.max() < index.top * index.block
        return lax.cond(is_short, lambda: every, lambda: _best(cache, own, positions, rows, blocks.prefill_keys))

    out = jnp.zeros(shape, jnp.int32)
    return map_token_blocks(block, (index.query, batch.positions, batch.token_rows), out, batch.num_tokens, size)


def _best(cache: IndexedCache, index: AnyIndex, positions: jax.Array, rows: jax.Array, block_keys: int) -> jax.Array:
    """The best blocks of tokens [B], int32 [B, choices, most], from index keys visited about `block_keys` at a time."""
    whole = math.lcm(index.block, cache.page_size)
    keys = max(block_keys // whole, 1) * whole
    length = cache.page_table.shape[1] * cache.page_size
    size, width = len(positions), index.key.shape[1]
    row = jnp.broadcast_to(rows[:, None], (size, keys))
    last = jnp.full_like(row, cache.kv_cache.shape[3] - 1)

    def visit(number: jax.Array, out: jax.Array) -> jax.Array:
        first = number * keys
        at = first + jnp.arange(keys, dtype=jnp.int32)
        found = cache.find(row, jnp.broadcast_to(at, row.shape), 0, last)
        stored = found.stored[..., :width].astype(index.query.dtype)
        stored = stored if found.scales is None else stored.astype(jnp.float32) * found.scales[..., None]
        best = index.scores(stored, first, positions)
        return lax.dynamic_update_slice_in_dim(out, best, number * (keys // index.block), axis=2)

    count = -(-length // keys) * (keys // index.block)
    scores = jnp.full((size, index.choices, count), -jnp.inf, jnp.float32)
    scores = lax.fori_loop(0, lax.div(positions.max() + keys, jnp.int32(keys)), visit, scores)
    # Of equal ones the first: XLA promises it.
    _, best = lax.top_k(scores, index.most)
    # What is one too many goes after the others.
    is_seen = jnp.arange(index.most, dtype=jnp.int32) < index.limits(positions)[:, None, None]
    return jnp.sort(jnp.where(is_seen, best, count), axis=-1).astype(jnp.int32)
