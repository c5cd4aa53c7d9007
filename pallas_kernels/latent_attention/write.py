"""The write of a step's latents, for caches that have tokens of a page one after the other."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, places_of, quantise


def write_latents(
    kv_cache: jax.Array, latent: jax.Array, *others: jax.Array, layer: int | jax.Array, batch: RaggedBatch
) -> jax.Array:
    """Put `latent` [T, Z] and `others` [T, ...] into their pages of `kv_cache` [L, P, C, S], one after the other.

    S is at least the sum of their sizes. Returns the cache, updated in place where it is donated.
    """
    new = quantise(jnp.concatenate([latent, *others], axis=-1), None, kv_cache.dtype)
    page, offset, new = places_of(batch, kv_cache.shape[2], _padded(new, kv_cache.shape[3]))
    return kv_cache.at[layer, page, offset].set(new, mode="promise_in_bounds")


def _padded(x: jax.Array, size: int) -> jax.Array:
    """`x` with zeros after its last axis."""
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, size - x.shape[-1]),))


def joined_queries(q_latent: jax.Array, q_rope: jax.Array, size: int) -> jax.Array:
    """Queries [T, N, S] for such a cache, from [T, N, Z] and [T, N, Y]."""
    return _padded(jnp.concatenate([q_latent, q_rope], axis=-1), size)
