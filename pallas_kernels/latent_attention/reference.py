"""Latent attention the obvious way: every token gathers its whole table. The oracle of the other implementations.

Computes in float32, or in float64 where queries are.
"""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.latent_attention.backend import LatentBackend, LatentOptions
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
) -> tuple[jax.Array, jax.Array]:
    """See `latent_attention`. Time and memory grow with T x W, whatever is in the batch."""
    kv_cache = write_latents(kv_cache, latent, k_rope, layer, batch)
    tokens, _, size = q_latent.shape
    wide = jnp.float64 if q_latent.dtype == jnp.float64 else jnp.float32
    tables = batch.page_table[batch.token_rows]
    keys = kv_cache[layer, tables].reshape(tokens, -1, kv_cache.shape[3]).astype(wide)
    queries = joined_queries(q_latent, q_rope, kv_cache.shape[3]).astype(wide)
    scores = jnp.einsum("tns,tks->tnk", queries, keys) * options.scale
    visible = jnp.arange(keys.shape[1], dtype=jnp.int32) <= batch.positions[:, None]
    weights = jax.nn.softmax(jnp.where(visible[:, None, :], scores, -jnp.inf), axis=-1)
    out = jnp.einsum("tnk,tkz->tnz", weights, keys[..., :size])
    is_token = jnp.arange(tokens, dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token[:, None, None], out, 0.0).astype(q_latent.dtype), kv_cache


BACKEND = LatentBackend(reference_latent_attention)
