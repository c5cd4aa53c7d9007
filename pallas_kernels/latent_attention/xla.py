"""Latent attention in plain XLA operations, blocked as `paged_attention` is: nothing of it grows with the context.

To the blocks it is attention with one KV head, whose values are the first numbers of its keys.
"""

from dataclasses import dataclass
from typing import get_args

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.latent_attention.backend import (
    LatentBackend,
    LatentFeature,
    LatentGeometry,
    LatentOptions,
    LatentSizes,
)
from jaxllm.pallas_kernels.latent_attention.write import joined_queries, write_latents
from jaxllm.pallas_kernels.latent_attention.xla_indexed import attend_to_chosen, indexed_with
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import with_short
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.xla_common.attend import attend_by_platform
from jaxllm.pallas_kernels.xla_common.blockwise import Blocks, Pages, Part
from jaxllm.pallas_kernels.xla_common.softmax import Heads

SMALL_ROWS, LARGE_ROWS = 1024, 8192
"""Query rows (tokens times heads) of a block of a prompt, on processors and on GPUs: with sums of 512 for each row, 2
and 16 MB."""


def cache_shape(geometry: LatentGeometry) -> tuple[int, ...]:
    """[L, P, C, S]: S is Z + Y + I, for TPUs rounded up to whole rows of 128 lanes, as they would pad it themselves."""
    size = geometry.sizes.token
    return (geometry.layers, geometry.pages, geometry.page_size, size + (-size % LANES if geometry.for_tpu else 0))


@dataclass(frozen=True)
class _Latents(Pages):
    """Pages of a cache [L, P, C, S]."""

    size: int
    """Size of a latent."""

    def keys(self, tables: jax.Array) -> Part:
        """See `Pages`."""
        gathered = self.kv_cache.at[self.layer, tables].get(mode="promise_in_bounds")
        return Part(gathered.reshape(tables.shape[0], 1, -1, self.kv_cache.shape[3]))

    def values(self, tables: jax.Array, keys: Part) -> Part:
        """See `Pages`."""
        return Part(keys.stored[..., : self.size])


def xla_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `latent_attention`. The cache is [L, P, C, S], see `cache_shape`."""
    if options.writes:
        kv_cache = write_latents(kv_cache, latent, k_rope, layer=layer, batch=batch)
    return _attend_to_all(q_latent, q_rope, kv_cache, layer, batch, options), kv_cache


def _attend_to_all(
    q_latent: jax.Array,
    q_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
) -> jax.Array:
    """Attention of every token to all keys up to itself, or to those of its window, [T, N, Z]."""
    _, num_heads, size = q_latent.shape
    heads = Heads(num_heads, 1, size, options.scale, None, options.sinks, None, None)
    pages = _Latents(kv_cache, jnp.asarray(layer, jnp.int32), kv_cache.shape[2], batch.page_table, size)
    queries = joined_queries(q_latent, q_rope, kv_cache.shape[3])
    is_whole = not options.window
    starts = jnp.zeros_like(batch.positions) if is_whole else jnp.maximum(batch.positions - options.window + 1, 0)
    small = Blocks(decode_rows=4, decode_keys=128, prefill_queries=max(SMALL_ROWS // num_heads, 1), prefill_keys=128)
    large = Blocks(decode_rows=64, decode_keys=512, prefill_queries=max(LARGE_ROWS // num_heads, 1), prefill_keys=1024)
    return attend_by_platform(queries, pages, batch, starts, heads, small=small, large=large)


def _without_padding(cache: jax.Array, sizes: LatentSizes) -> jax.Array:
    return cache[..., : sizes.token]


BACKEND = LatentBackend(
    xla_latent_attention,
    cache_shape,
    to_canonical=_without_padding,
    prepare=lambda batch, num_heads, most_short: with_short(batch, most_short),
    supports=frozenset(get_args(LatentFeature)),
    call_indexed=indexed_with(_attend_to_all, attend_to_chosen),
)
