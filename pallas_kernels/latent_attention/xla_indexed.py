"""Latent attention to chosen keys, in plain XLA operations.

For blocks of tokens, index keys of their requests are scored block by block, and the best ones chosen. The places of
the keys of a token then are a page table of its own, with pages of one token: attention to them is that of decodes.
Its cost is bounded by `top`, whatever the context; that of scores grows with the context, but they are small.

Nothing of a token depends on others: each is scored alone, and chosen keys are visited in the order of their positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.latent_attention.backend import ChosenKeys, IndexedLatentAttention, KeyIndex, LatentOptions
from jaxllm.pallas_kernels.latent_attention.write import joined_queries, write_latents
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.xla_common.blockwise import Blocks, Pages, Part, decode_by_blocks
from jaxllm.pallas_kernels.xla_common.softmax import Heads
from jaxllm.pallas_kernels.xla_common.token_blocks import map_token_blocks

SMALL = Blocks(decode_rows=4, decode_keys=128, prefill_queries=4, prefill_keys=128)
LARGE = Blocks(decode_rows=64, decode_keys=512, prefill_queries=64, prefill_keys=1024)
"""Blocks of attention (decodes), and of scores (prefill), on processors and on GPUs."""


@dataclass(frozen=True)
class _Tokens(Pages):
    """A cache [L, P * C, S], whose pages are tokens."""

    size: int
    """Size of a latent."""

    def keys(self, tables: jax.Array) -> Part:
        """See `Pages`."""
        return Part(self.kv_cache.at[self.layer, tables].get(mode="promise_in_bounds")[:, None])

    def values(self, tables: jax.Array, keys: Part) -> Part:
        """See `Pages`."""
        return Part(keys.stored[..., : self.size])


def indexed_with(
    attend_to_all: Callable[..., jax.Array], attend_to_chosen: Callable[..., jax.Array]
) -> IndexedLatentAttention:
    """`LatentBackend.call_indexed`, which writes and chooses as here and attends by one of these two.

    Both take queries [T, N, Z] and [T, N, Y], the cache, layer, batch and options, the second one also `ChosenKeys`,
    and return [T, N, Z].
    """

    def indexed_latent_attention(
        q_latent: jax.Array,
        q_rope: jax.Array,
        latent: jax.Array,
        k_rope: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: LatentOptions,
        index: KeyIndex | ChosenKeys,
    ) -> tuple[jax.Array, jax.Array, ChosenKeys]:
        """See `indexed_latent_attention`. Where no request can have more than `top` keys, they are not compared."""
        assert not options.window, "keys are chosen among all of them"
        own = (index.key,) if isinstance(index, KeyIndex) else ()
        if options.writes:
            kv_cache = write_latents(kv_cache, latent, k_rope, *own, layer=layer, batch=batch)
        most = index.most if isinstance(index, KeyIndex) else index.places.shape[1]
        if batch.page_table.shape[1] * kv_cache.shape[2] <= most - index.pool + 1:
            every = ChosenKeys(jnp.zeros((len(q_latent), most), jnp.int32), index.pool)
            return attend_to_all(q_latent, q_rope, kv_cache, layer, batch, options), kv_cache, every
        if isinstance(index, KeyIndex):
            index = choose_keys(kv_cache, layer, batch, index, q_latent.shape[2] + q_rope.shape[2])
        return attend_to_chosen(q_latent, q_rope, kv_cache, layer, batch, options, index), kv_cache, index

    return indexed_latent_attention


def attend_to_chosen(
    q_latent: jax.Array,
    q_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    chosen: ChosenKeys,
) -> jax.Array:
    """Attention of every token to the keys that are `chosen`, [T, N, Z]; the cache has the new tokens already."""
    _, num_heads, size = q_latent.shape
    layer = jnp.asarray(layer, jnp.int32)
    heads = Heads(num_heads, 1, size, options.scale, None, options.sinks, None, None)
    flat = kv_cache.reshape(kv_cache.shape[0], -1, kv_cache.shape[3])
    rows, starts = chosen.rows(batch), jnp.zeros_like(batch.positions)

    def attend(blocks: Blocks) -> Callable[[jax.Array], jax.Array]:
        def run(queries: jax.Array) -> jax.Array:
            keys = _Tokens(flat, layer, 1, chosen.places, size)
            return decode_by_blocks(queries, keys, rows, starts, heads, blocks)

        return run

    gpu, queries = attend(LARGE), joined_queries(q_latent, q_rope, kv_cache.shape[3])
    attended: jax.Array = lax.platform_dependent(queries, cuda=gpu, rocm=gpu, default=attend(SMALL))
    return attended


def choose_keys(
    kv_cache: jax.Array, layer: int | jax.Array, batch: RaggedBatch, index: KeyIndex, start: int
) -> ChosenKeys:
    """The keys that `index` chooses; in a token of the cache its index key begins at `start`."""
    layer = jnp.asarray(layer, jnp.int32)

    def choose(blocks: Blocks) -> Callable[[KeyIndex], jax.Array]:
        return lambda index: _choose(_Indexed(index, kv_cache, layer, start), batch, blocks)

    gpu = choose(LARGE)
    places: jax.Array = lax.platform_dependent(index, cuda=gpu, rocm=gpu, default=choose(SMALL))
    return ChosenKeys(places, index.pool)


@dataclass(frozen=True)
class _Indexed:
    """An index, and the cache with its keys."""

    index: KeyIndex
    kv_cache: jax.Array
    layer: jax.Array
    start: int
    """Where in a token of the cache its index key begins."""

    def keys(self, tables: jax.Array) -> jax.Array:
        """Index keys of the pages in `tables` [B, pages], [B, pages * C, I]."""
        end = self.start + self.index.key.shape[1]
        found = self.kv_cache.at[self.layer, tables, :, self.start : end].get(mode="promise_in_bounds")
        return found.reshape(tables.shape[0], -1, found.shape[-1])


def _choose(indexed: _Indexed, batch: RaggedBatch, blocks: Blocks) -> jax.Array:
    """Where the keys are that each token sees, places in [P * C] in the order of their positions: int32 [T, most].

    After the keys of a token with fewer of them come any others.
    """
    index, page_size = indexed.index, indexed.kv_cache.shape[2]
    tokens, most = len(batch.positions), index.most
    size = min(blocks.prefill_queries, tokens)
    # A block has whole groups.
    whole = math.lcm(page_size, index.pool) // page_size
    pages = min(max(blocks.prefill_keys // page_size, 1), batch.page_table.shape[1])
    pages += -pages % whole
    table = jnp.pad(batch.page_table, ((0, 0), (0, -batch.page_table.shape[1] % pages)))

    def block(arrays: tuple[KeyIndex, jax.Array, jax.Array]) -> jax.Array:
        own, of, rows = arrays
        tables = table[rows]
        every = jnp.broadcast_to(jnp.arange(most, dtype=jnp.int32), (size, most))
        # Short contexts cost nothing; their tokens see every key whether these are scored or not.
        chosen = lax.cond(
            of.max() < index.top,
            lambda: every,
            lambda: _best(replace(indexed, index=replace(own, bias=index.bias)), tables, of, pages),
        )
        column, offset = lax.div(chosen, jnp.int32(page_size)), lax.rem(chosen, jnp.int32(page_size))
        return jnp.take_along_axis(tables, column, axis=1) * page_size + offset

    out = jnp.zeros((tokens, most), jnp.int32)
    # What belongs to no token is not cut into blocks.
    by_token = replace(index, bias=None)
    return map_token_blocks(block, (by_token, batch.positions, batch.token_rows), out, batch.num_tokens, size)


def _best(indexed: _Indexed, tables: jax.Array, positions: jax.Array, block_pages: int) -> jax.Array:
    """Positions of the best keys of tokens [B] whose pages are in `tables` [B, W], ascending: int32 [B, most]."""
    index, page_size = indexed.index, indexed.kv_cache.shape[2]
    keys, pool = block_pages * page_size, index.pool
    ends = jnp.arange(pool - 1, keys, pool, dtype=jnp.int32)

    def visit(number: jax.Array, out: jax.Array) -> jax.Array:
        part = lax.dynamic_slice_in_dim(tables, number * block_pages, block_pages, axis=1)
        stored = group_keys(indexed.keys(part), index.bias).astype(index.query.dtype)
        products = jnp.einsum("bmi,bki->bmk", index.query, stored, preferred_element_type=jnp.float32)
        scores = jax.nn.relu(products * index.query.shape[2] ** -0.5) * index.weights[:, :, None]
        visible = number * keys + ends <= positions[:, None]
        scored = jnp.where(visible, scores.sum(axis=1), -jnp.inf)
        return lax.dynamic_update_slice_in_dim(out, scored, number * len(ends), axis=1)

    scores = jnp.full((len(positions), tables.shape[1] * page_size // pool), -jnp.inf, jnp.float32)
    scores = lax.fori_loop(0, lax.div(positions.max() + keys, jnp.int32(keys)), visit, scores)
    # Of equal ones the first: XLA promises it.
    found, best = lax.top_k(scores, index.top // pool)
    if pool == 1:
        return jnp.sort(best, axis=-1).astype(jnp.int32)
    return _with_unfinished(jnp.where(jnp.isneginf(found), _NONE, best), positions, pool)


_NONE = jnp.iinfo(jnp.int32).max
"""In place of a group or a position that there is not."""


def _with_unfinished(groups: jax.Array, positions: jax.Array, pool: int) -> jax.Array:
    """Positions of the tokens in `groups` [B, top / pool], and of the unfinished ones of tokens at `positions` [B]."""
    places = jnp.arange(pool, dtype=jnp.int32)
    chosen = jnp.where(groups[..., None] == _NONE, _NONE, groups[..., None] * pool + places)
    count = lax.rem(positions + 1, jnp.int32(pool))[:, None]
    rest = jnp.where(places[:-1] < count, positions[:, None] + 1 - count + places[:-1], _NONE)
    every = jnp.sort(jnp.concatenate([chosen.reshape(len(groups), -1), rest], axis=1), axis=-1)
    return jnp.where(every == _NONE, 0, every).astype(jnp.int32)


def group_keys(stored: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Keys [B, K / G, I] of groups of G tokens, from what the cache has of these [B, K, 2 * I]; see `KeyIndex`."""
    if bias is None:
        return stored
    pool, size = bias.shape
    groups = stored.reshape(len(stored), -1, pool, 2 * size).astype(jnp.promote_types(stored.dtype, jnp.float32))
    weights = jax.nn.softmax(groups[..., size:] + bias, axis=2)
    return (weights * groups[..., :size]).sum(axis=2)
