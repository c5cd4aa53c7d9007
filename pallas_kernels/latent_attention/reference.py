"""Latent attention the obvious way: every token gathers its whole table. The oracle of the other implementations.

Computes in float32, or in float64 where queries are.
"""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.latent_attention.backend import KeyIndex, LatentBackend, LatentOptions
from jaxllm.pallas_kernels.latent_attention.write import joined_queries, write_latents
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def reference_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    index: KeyIndex | None = None,
) -> tuple[jax.Array, jax.Array]:
    """See `latent_attention`. Time and memory grow with T x W, whatever is in the batch."""
    index_key = () if index is None else (index.key,)
    kv_cache = write_latents(kv_cache, latent, k_rope, *index_key, layer=layer, batch=batch)
    tokens, _, size = q_latent.shape
    wide = jnp.float64 if q_latent.dtype == jnp.float64 else jnp.float32
    tables = batch.page_table[batch.token_rows]
    keys = kv_cache[layer, tables].reshape(tokens, -1, kv_cache.shape[3]).astype(wide)
    queries = joined_queries(q_latent, q_rope, kv_cache.shape[3]).astype(wide)
    scores = jnp.einsum("tns,tks->tnk", queries, keys) * options.scale
    visible = jnp.arange(keys.shape[1], dtype=jnp.int32) <= batch.positions[:, None]
    if index is not None:
        start = size + q_rope.shape[2]
        visible &= _chosen(index, keys[..., start : start + index.key.shape[1]], visible)
    weights = jax.nn.softmax(jnp.where(visible[:, None, :], scores, -jnp.inf), axis=-1)
    out = jnp.einsum("tnk,tkz->tnz", weights, keys[..., :size])
    is_token = jnp.arange(tokens, dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token[:, None, None], out, 0.0).astype(q_latent.dtype), kv_cache


def _chosen(index: KeyIndex, keys: jax.Array, visible: jax.Array) -> jax.Array:
    """Whether a token [T] sees a key [K] if it is among the `visible` ones; `keys` are index keys [T, K, I]."""
    products = jnp.einsum("tmi,tki->tmk", index.query.astype(keys.dtype), keys) * index.query.shape[2] ** -0.5
    scores = jnp.einsum("tm,tmk->tk", index.weights.astype(keys.dtype), jax.nn.relu(products))
    order = jnp.argsort(jnp.where(visible, -scores, jnp.inf), axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1)
    return rank < index.top


BACKEND = LatentBackend(reference_latent_attention, call_indexed=reference_latent_attention)
