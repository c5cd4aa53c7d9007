"""Paged attention the obvious way: every token gathers its whole table. The oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Backend
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
    tokens, num_heads, head_size = q.shape
    num_kv_heads = kv_cache.shape[3] // 2
    tables = batch.page_table[batch.token_rows]
    context = kv_cache[layer, tables].reshape(tokens, -1, num_kv_heads, 2, kv_cache.shape[4])
    if options.scale_bytes:
        numbers, scales = split_scales(context, options.scale_bytes)
        context = numbers.astype(jnp.float32) * scales[..., None]
    context = context.astype(jnp.float32)
    keys = context[:, :, :, 0] * (1.0 if options.k_scale is None else options.k_scale)
    values = context[:, :, :, 1] * (1.0 if options.v_scale is None else options.v_scale)
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
    scores = jnp.where(visible[:, None, None, :], scores, -jnp.inf)
    if options.sinks is not None:
        sink = jnp.broadcast_to(options.sinks.reshape(1, num_kv_heads, -1, 1), (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : keys.shape[1]]
    out = jnp.einsum("tkgs,tskh->tkgh", weights, values).reshape(q.shape)
    is_token = jnp.arange(tokens, dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token[:, None, None], out, 0.0).astype(q.dtype), kv_cache


BACKEND = Backend(reference_paged_attention, supports_spans=True)
