"""Latent attention the obvious way: every token gathers its whole table. The oracle of the other implementations.

Computes in float32, or in float64 where queries are.
"""

from collections.abc import Callable
from typing import get_args

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.latent_attention.backend import (
    ChosenKeys,
    KeyIndex,
    LatentBackend,
    LatentFeature,
    LatentOptions,
)
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
    arrays = q_latent, q_rope, latent, k_rope, kv_cache, layer, batch, options
    return _attend(*arrays, lambda keys, places, visible: (visible, None))[:2]


def reference_indexed_latent_attention(
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
    """See `indexed_latent_attention`."""
    start = q_latent.shape[2] + q_rope.shape[2]

    def choose(keys: jax.Array, places: jax.Array, visible: jax.Array) -> tuple[jax.Array, ChosenKeys]:
        if isinstance(index, KeyIndex):
            best = _best(index, keys[..., start : start + index.key.shape[1]], visible, batch.positions)
            order = jnp.argsort(~best, axis=-1, stable=True)[:, : index.most]
            wide = jnp.pad(places, ((0, 0), (0, max(index.most - places.shape[1], 0))))
            own = jnp.take_along_axis(wide, order, axis=1)
            return best, ChosenKeys(jnp.pad(own, ((0, 0), (0, index.most - own.shape[1]))), index.pool)
        is_chosen = jnp.arange(index.places.shape[1], dtype=jnp.int32) < index.count(batch.positions)[:, None]
        seen = visible & ((places[:, :, None] == index.places[:, None]) & is_chosen[:, None]).any(axis=-1)
        return jnp.where(batch.positions[:, None] <= index.places.shape[1] - index.pool, visible, seen), index

    own = (index.key,) if isinstance(index, KeyIndex) else ()
    arrays = q_latent, q_rope, latent, k_rope, kv_cache, layer, batch, options
    out, kv_cache, chosen = _attend(*arrays, choose, own)
    assert chosen is not None
    return out, kv_cache, chosen


_Choice = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ChosenKeys | None]]
"""Which keys [T, K] are seen, from these [T, K, S], their places [T, K] and whether they are visible [T, K]."""


def _attend(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    choose: _Choice,
    index_key: tuple[jax.Array, ...] = (),
) -> tuple[jax.Array, jax.Array, ChosenKeys | None]:
    """Attention to what `choose` says."""
    if options.writes:
        kv_cache = write_latents(kv_cache, latent, k_rope, *index_key, layer=layer, batch=batch)
    tokens, _, size = q_latent.shape
    wide = jnp.float64 if q_latent.dtype == jnp.float64 else jnp.float32
    tables = batch.page_table[batch.token_rows]
    keys = kv_cache[layer, tables].reshape(tokens, -1, kv_cache.shape[3]).astype(wide)
    queries = joined_queries(q_latent, q_rope, kv_cache.shape[3]).astype(wide)
    scores = jnp.einsum("tns,tks->tnk", queries, keys) * options.scale
    positions = jnp.arange(keys.shape[1], dtype=jnp.int32)
    visible = positions <= batch.positions[:, None]
    if options.window:
        visible &= positions > batch.positions[:, None] - options.window
    offsets = jnp.arange(kv_cache.shape[2], dtype=jnp.int32)
    places = (tables[:, :, None] * kv_cache.shape[2] + offsets).reshape(tokens, -1)
    visible, chosen = choose(keys, places, visible)
    scores = jnp.where(visible[:, None, :], scores, -jnp.inf)
    if options.sinks is not None:
        sinks = jnp.broadcast_to(options.sinks[None, :, None], (*scores.shape[:2], 1))
        scores = jnp.concatenate([scores, sinks.astype(wide)], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : keys.shape[1]]
    out = jnp.einsum("tnk,tkz->tnz", weights, keys[..., :size])
    is_token = jnp.arange(tokens, dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token[:, None, None], out, 0.0).astype(q_latent.dtype), kv_cache, chosen


def _best(index: KeyIndex, keys: jax.Array, visible: jax.Array, positions: jax.Array) -> jax.Array:
    """Which keys [T, K] a token sees, of the `visible` ones; `keys` are what the cache has for the index [T, K, I]."""
    if index.bias is None:
        return visible & (_ranks(index, keys, visible) < index.top)
    pool, size = index.bias.shape
    missing = -keys.shape[1] % pool
    groups = jnp.pad(keys, ((0, 0), (0, missing), (0, 0))).reshape(len(keys), -1, pool, 2 * size)
    weights = jax.nn.softmax(groups[..., size:] + index.bias.astype(keys.dtype), axis=2)
    complete = lax.div(positions + 1, jnp.int32(pool))[:, None]
    is_whole = jnp.arange(groups.shape[1], dtype=jnp.int32) < complete
    rank = _ranks(index, (weights * groups[..., :size]).sum(axis=2), is_whole)
    best = jnp.repeat(is_whole & (rank < index.top // pool), pool, axis=1)[:, : keys.shape[1]]
    return visible & (best | (jnp.arange(keys.shape[1], dtype=jnp.int32) >= complete * pool))


def _ranks(index: KeyIndex, keys: jax.Array, visible: jax.Array) -> jax.Array:
    """The rank of each key among the `visible` ones of a token [T, K]; `keys` are index keys [T, K, I]."""
    products = jnp.einsum("tmi,tki->tmk", index.query.astype(keys.dtype), keys) * index.query.shape[2] ** -0.5
    scores = jnp.einsum("tm,tmk->tk", index.weights.astype(keys.dtype), jax.nn.relu(products))
    order = jnp.argsort(jnp.where(visible, -scores, jnp.inf), axis=-1, stable=True)
    return jnp.argsort(order, axis=-1)


BACKEND = LatentBackend(
    reference_latent_attention,
    supports=frozenset(get_args(LatentFeature)),
    call_indexed=reference_indexed_latent_attention,
)
