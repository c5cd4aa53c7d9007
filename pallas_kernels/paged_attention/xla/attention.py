"""Paged attention in plain XLA operations, fast on CPU and correct everywhere; see `blockwise`.

In a page of the cache the tokens of one head lie together (`head_major_shape`), so that gathered keys and values are
operands of a batched matrix product as they are.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Attended, Backend, PagedAttention
from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex
from jaxllm.pallas_kernels.paged_attention.cache_write import write_head_major
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import split_scales
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.xla.indexed import IndexedCache, attend_to_blocks
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major, head_major_shape
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, window_start
from jaxllm.pallas_kernels.short_rows import with_short
from jaxllm.pallas_kernels.xla_common.attend import attend_by_platform
from jaxllm.pallas_kernels.xla_common.blockwise import LARGE, SMALL, Pages, Part
from jaxllm.pallas_kernels.xla_common.softmax import Heads


def attend_shared_rows(
    attend: PagedAttention,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> Attended:
    """`attend`, with heads as wide as the cache has them: several side by side, or padded.

    So the cache's minor dimension is whole rows of 128 lanes, as TPUs address memory. They would pad every row of a
    narrower one, and XLA would copy it in every layer.
    """
    if kv_cache.shape[-1] == q.shape[-1] + options.scale_bytes:
        return attend(q, k, v, kv_cache, layer, batch, options)
    shared = SharedRows(k.shape[1], q.shape[1] // k.shape[1], q.shape[2])
    lanes = ((0, 0), (0, 0), (0, kv_cache.shape[-1] - shared.wide_size))
    q, k, v = (jnp.pad(heads, lanes) for heads in (shared.spread(q), shared.join(k), shared.join(v)))
    sinks, slopes = (
        None if values is None else shared.pad_queries(values, axis=0)
        for values in (options.sinks, options.alibi_slopes)
    )
    options = replace(options, sinks=sinks, alibi_slopes=slopes)
    out, kv_cache = attend(q, k, v, kv_cache, layer, batch, options)
    return shared.own(out[..., : shared.wide_size]), kv_cache


@dataclass(frozen=True)
class _HeadMajor(Pages):
    """Pages of a cache [L, P, 2, K, C, H], or with more heads, or with `scale_bytes` after each head."""

    num_kv_heads: int
    scale_bytes: int = 0

    def keys(self, tables: jax.Array) -> Part:
        """See `Pages`."""
        return self._gather(tables, 0)

    def values(self, tables: jax.Array, keys: Part) -> Part:
        """See `Pages`."""
        return self._gather(tables, 1)

    def _gather(self, tables: jax.Array, which: int) -> Part:
        num_kv_heads, size = self.num_kv_heads, self.kv_cache.shape[5]
        each_head = jnp.arange(num_kv_heads, dtype=jnp.int32)[:, None]
        # Indices of every axis, and no reshape of the cache: that would copy it where there is one KV head. Trusted
        # indices make XLA's CPU gather a memory copy: 5 times faster than the default.
        place = self.kv_cache.at[self.layer, tables[:, None, :], which, each_head]
        found = place.get(mode="promise_in_bounds").reshape(tables.shape[0], num_kv_heads, -1, size)
        return Part(*split_scales(found, self.scale_bytes)) if self.scale_bytes else Part(found)


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
    if options.writes:
        kv_cache = write_head_major(kv_cache, k, v, layer, batch, options)
    heads = _heads(q, k.shape[1], kv_cache, options)
    return _attend_to_all(q, kv_cache, layer, batch, heads, options), kv_cache


def xla_indexed_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    index: AnyIndex,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. Where no request can have more blocks than are chosen, they are not compared."""
    kv_cache = write_head_major(kv_cache, *index.joined(k, v), layer, batch, options)
    heads = _heads(q, k.shape[1], kv_cache, options)
    if batch.page_table.shape[1] * kv_cache.shape[4] <= index.top * index.block:
        return _attend_to_all(q, kv_cache, layer, batch, heads, options), kv_cache
    cache = IndexedCache(kv_cache, jnp.asarray(layer, jnp.int32), batch.page_table, options.scale_bytes)
    return attend_to_blocks(q, cache, batch, index, heads), kv_cache


def _heads(q: jax.Array, num_kv_heads: int, kv_cache: jax.Array, options: AttentionOptions) -> Heads:
    """Attention with these queries [T, N, H]."""
    sinks, alibi_slopes, k_scale, v_scale = (
        None if value is None else jnp.asarray(value, jnp.float32)
        for value in (options.sinks, options.alibi_slopes, options.k_scale, options.v_scale)
    )
    # The key scale goes into the scores and the value scale into the result: both once, not for every key.
    scale = options.scale if k_scale is None else options.scale * k_scale
    size = kv_cache.shape[5] - options.scale_bytes
    return Heads(q.shape[1], num_kv_heads, size, scale, options.soft_cap, sinks, alibi_slopes, v_scale)


def _attend_to_all(
    q: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    heads: Heads,
    options: AttentionOptions,
) -> jax.Array:
    """Attention of every token to all keys up to itself, within its window, [T, N, H]."""
    starts, page_size = window_start(batch.positions, options.window), kv_cache.shape[4]
    place = jnp.asarray(layer, jnp.int32), page_size, batch.page_table
    pages = _HeadMajor(kv_cache, *place, heads.num_kv_heads, options.scale_bytes)
    return attend_by_platform(q, pages, batch, starts, heads, small=SMALL, large=LARGE)


BACKEND = Backend(
    partial(attend_shared_rows, xla_paged_attention),
    head_major_shape,
    lambda batch, heads: with_short(batch, heads.most_short),
    from_canonical=lambda cache, scale_bytes=0: head_major(cache),
    to_canonical=lambda cache, page_size, scale_bytes=0: canonical(cache),
    page_size=lambda shape, head_size: shape[4],
    supports_spans=True,
    call_indexed=xla_indexed_attention,
)
