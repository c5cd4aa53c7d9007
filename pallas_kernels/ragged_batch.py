"""Where each token of a step sits: the metadata every implementation of paged attention reads, and the write."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.dynamic_scales import joined, quantised
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions

NULL_PAGE = 0
"""Padding tokens write here; the page is never part of a request."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RaggedBatch:
    """T token places and R row places, of which the first `num_tokens` and `num_requests` are used.

    Rows lie one after the other on the token axis. Rows with a single token come first, so that token i of the first
    `num_decodes` is row i. All arrays are int32.
    """

    positions: jax.Array
    """[T] position of each token in its request; 0 for padding."""
    token_rows: jax.Array
    """[T] row of each token; 0 for padding."""
    query_start: jax.Array
    """[R + 1] first token of each row; `num_tokens` for padding rows."""
    kv_lens: jax.Array
    """[R] tokens of the row in the cache once this step is written; 0 for padding rows."""
    page_table: jax.Array
    """[R, W] pages of each row in order; `NULL_PAGE` where there is none."""
    num_tokens: jax.Array
    """[] tokens that are not padding."""
    num_decodes: jax.Array
    """[] leading rows with exactly one token."""
    num_requests: jax.Array
    """[] rows that are not padding."""


def quantise(values: jax.Array, scale: float | jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """`values` as a cache of `dtype` stores them: divided by `scale`, clipped to what it holds, never NaN or infinite.

    Pages pass from request to request, and a weight of zero on a NaN left behind by another would still be NaN.
    """
    values = jnp.where(jnp.isfinite(values), values, 0)
    if scale is not None:
        values = values.astype(jnp.float32) / scale
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return jnp.clip(jnp.round(values.astype(jnp.float32)), limits.min, limits.max).astype(dtype)
    if jnp.dtype(dtype).itemsize == 1:
        largest = float(jnp.finfo(dtype).max)
        values = jnp.clip(values.astype(jnp.float32), -largest, largest)
    return values.astype(dtype)


def stored_as(k: jax.Array, v: jax.Array, options: AttentionOptions, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Keys and values [T, K, H] as a cache of `dtype` stores them: [T, K, H + scale bytes]."""
    if options.scale_bytes:
        assert dtype == jnp.int8, dtype
        return joined(quantised(k), options.scale_bytes), joined(quantised(v), options.scale_bytes)
    return quantise(k, options.k_scale, dtype), quantise(v, options.v_scale, dtype)


def write_kv(
    kv_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> jax.Array:
    """Put the step's keys and values into their pages.

    `kv_cache` is [L, P, C, 2K, H], `k` and `v` are [T, K, H], scales as in `paged_attention`. Returns the cache,
    updated in place where it is donated.
    """
    layers, pages, page_size, heads, head_size = kv_cache.shape
    stored = stored_as(k, v, options, kv_cache.dtype)
    new = jnp.stack(stored, axis=2).reshape(k.shape[0], heads, head_size)
    page, offset, new = places_of(batch, page_size, new)
    place = (layer * pages + page) * page_size + offset
    # The last two dimensions stay apart: TPUs tile them, and joining them would copy the cache.
    flat = kv_cache.reshape(layers * pages * page_size, heads, head_size)
    flat = flat.at[place].set(new, mode="promise_in_bounds")
    return flat.reshape(kv_cache.shape)


def write_head_major(
    kv_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> jax.Array:
    """`write_kv` for a cache [L, P, 2, K, C, H]."""
    new = jnp.stack(stored_as(k, v, options, kv_cache.dtype), axis=1)
    page, offset, new = places_of(batch, kv_cache.shape[4], new)
    # Indices of every axis but the last: XLA copies a cache that is reshaped (where there is one KV head), and for TPUs
    # one of which a whole axis before an index is written.
    which, head = (jnp.arange(size, dtype=jnp.int32) for size in new.shape[1:3])
    place = kv_cache.at[layer, page[:, None, None], which[:, None], head, offset[:, None, None]]
    return place.set(new, mode="promise_in_bounds")


def places_of(batch: RaggedBatch, page_size: int, new: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Page and offset in it of each token [T], and `new` [T, ...], what goes there."""
    page, offset = cached_places(batch, page_size)
    if len(page) == 1:
        # XLA turns a scatter of one row into an update slice, fuses that into each of its users, and copies the whole
        # cache for it. Writing the row twice keeps it a scatter.
        page, offset, new = (jnp.repeat(each, 2, axis=0) for each in (page, offset, new))
    return page, offset, new


def cached_places(batch: RaggedBatch, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Page and offset in it of each token [T]."""
    column, offset = _divide(batch.positions, page_size)
    page = batch.page_table.at[batch.token_rows, column].get(mode="promise_in_bounds")
    is_token = jnp.arange(len(page), dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token, page, NULL_PAGE), offset


def _divide(positions: jax.Array, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Quotient and remainder of positions, which are never negative (`//` and `%` would spend operations on that)."""
    size = jnp.int32(page_size)
    return jax.lax.div(positions, size), jax.lax.rem(positions, size)


def window_start(positions: jax.Array, window: int | jax.Array | None) -> jax.Array:
    """First key position each query may see. A window of None or 0 lets it see everything before it."""
    if window is None:
        return jnp.zeros_like(positions)
    window = jnp.asarray(window, jnp.int32)
    return jnp.where(window > 0, jnp.maximum(positions - window + 1, 0), 0)
