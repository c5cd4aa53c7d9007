"""New keys and values on their way into the pages of a cache."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.dynamic_scales import join_scales, quantise_heads
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, places_of, quantise


def to_cache_dtype(
    k: jax.Array, v: jax.Array, options: AttentionOptions, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """Keys and values [T, K, H] as a cache of `dtype` stores them: [T, K, H + scale bytes]."""
    if options.scale_bytes:
        assert dtype == jnp.int8, dtype
        return join_scales(quantise_heads(k), options.scale_bytes), join_scales(quantise_heads(v), options.scale_bytes)
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
    updated in place where it is donated. Of a cache with more heads, the others stay as they are.
    """
    layers, pages, page_size, heads, head_size = kv_cache.shape
    stored = to_cache_dtype(k, v, options, kv_cache.dtype)
    new = jnp.stack(stored, axis=2).reshape(k.shape[0], -1, head_size)
    page, offset, new = places_of(batch, page_size, new)
    place = (layer * pages + page) * page_size + offset
    # The last two dimensions stay apart: TPUs tile them, and joining them would copy the cache.
    flat = kv_cache.reshape(layers * pages * page_size, heads, head_size)
    whole = flat.at[place] if new.shape[1] == heads else flat.at[place, : new.shape[1]]
    flat = whole.set(new, mode="promise_in_bounds")
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
    new = jnp.stack(to_cache_dtype(k, v, options, kv_cache.dtype), axis=1)
    page, offset, new = places_of(batch, kv_cache.shape[4], new)
    # Indices of every axis but the last: XLA copies a cache that is reshaped (where there is one KV head), and for TPUs
    # one where a whole axis before an index is written.
    which, head = (jnp.arange(size, dtype=jnp.int32) for size in new.shape[1:3])
    place = kv_cache.at[layer, page[:, None, None], which[:, None], head, offset[:, None, None]]
    return place.set(new, mode="promise_in_bounds")
