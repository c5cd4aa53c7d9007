"""Paged attention the obvious way: every token gathers its whole table. The oracle of the other implementations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Backend
from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex
from jaxllm.pallas_kernels.paged_attention.cache_write import write_kv
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import split_scales
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, window_start


def reference_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. Time and memory grow with T x W, whatever is in the batch."""
    if options.writes:
        kv_cache = write_kv(kv_cache, k, v, layer, batch, options)
    return _attend(q, k.shape[1], kv_cache, layer, batch, options), kv_cache


def reference_indexed_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    index: AnyIndex,
) -> tuple[jax.Array, jax.Array]:
    """The same to the keys that an index chooses."""
    kv_cache = write_kv(kv_cache, *index.joined(k, v), layer, batch, options)

    def seen(keys: jax.Array) -> jax.Array:
        return _chosen(index, keys[:, :, -1, : index.key.shape[1]], batch.positions)

    return _attend(q, k.shape[1], kv_cache, layer, batch, options, seen), kv_cache


def _attend(
    q: jax.Array,
    num_kv_heads: int,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    choose: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Attention to the first heads of a cache, of their keys to those [T, K, S] that `choose` says, of all its keys."""
    tokens, num_heads, head_size = q.shape
    tables = batch.page_table[batch.token_rows]
    context = kv_cache[layer, tables].reshape(tokens, -1, kv_cache.shape[3] // 2, 2, kv_cache.shape[4])
    if options.scale_bytes:
        numbers, scales = split_scales(context, options.scale_bytes)
        context = numbers.astype(jnp.float32) * scales[..., None]
    context = context.astype(jnp.float32)
    all_keys = context[:, :, :, 0] * (1.0 if options.k_scale is None else options.k_scale)
    keys = all_keys[:, :, :num_kv_heads]
    values = context[:, :, :num_kv_heads, 1] * (1.0 if options.v_scale is None else options.v_scale)
    queries = q.reshape(tokens, num_kv_heads, num_heads // num_kv_heads, head_size).astype(jnp.float32)

    scores = jnp.einsum("tkgh,tskh->tkgs", queries, keys) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    key_positions = jnp.arange(keys.shape[1], dtype=jnp.int32)
    if options.alibi_slopes is not None:
        distances = (key_positions - batch.positions[:, None]).astype(jnp.float32)
        scores += options.alibi_slopes.reshape(1, num_kv_heads, -1, 1) * distances[:, None, None, :]
    ends = batch.positions + 1 if batch.visible_until is None else batch.visible_until
    visible = key_positions < ends[:, None]
    visible &= key_positions >= window_start(batch.positions, options.window)[:, None]
    visible = visible[:, None] if choose is None else visible[:, None] & choose(all_keys)
    scores = jnp.where(visible[:, :, None], scores, -jnp.inf)
    if options.sinks is not None:
        sink = jnp.broadcast_to(options.sinks.reshape(1, num_kv_heads, -1, 1), (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : keys.shape[1]]
    out = jnp.einsum("tkgs,tskh->tkgh", weights, values).reshape(q.shape)
    is_token = jnp.arange(tokens, dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token[:, None, None], out, 0.0).astype(q.dtype)


def _chosen(index: AnyIndex, keys: jax.Array, positions: jax.Array) -> jax.Array:
    """Which keys [T, K or 1, S] are in chosen blocks, from index keys [T, S, I]."""
    length = keys.shape[1]
    whole = jnp.pad(keys, ((0, 0), (0, -length % index.block), (0, 0)))
    scores = index.scores(whole, jnp.int32(0), positions)
    order = jnp.argsort(-scores, axis=-1, stable=True)
    ranks = jnp.argsort(order, axis=-1)
    seen = ranks < index.limits(positions)[:, None, None]
    return jnp.repeat(seen, index.block, axis=-1)[..., :length]


BACKEND = Backend(reference_paged_attention, supports_spans=True, call_indexed=reference_indexed_attention)
