"""The canonical cache in the kernel's layout and back, for tests and tools; a running engine never converts."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.tpu.layout import LANES, Dims


def from_canonical(cache: jax.Array, dims: Dims) -> jax.Array:
    """[L, P, C, 2K, H] as [L, P, 1, J, C, packing, 128]."""
    layers, pages, page_size, twice_heads, head_size = cache.shape
    heads = dims.packs // dims.folds * dims.kv_packing
    pad = ((0, 0), (0, 0), (0, 0), (0, heads - twice_heads), (0, dims.folds * LANES - head_size))
    cache = jnp.pad(cache, pad)
    cache = cache.reshape(layers, pages, page_size, -1, dims.kv_packing, dims.folds, LANES)
    cache = cache.transpose(0, 1, 3, 5, 2, 4, 6)
    return cache.reshape(layers, pages, 1, dims.packs, page_size, dims.kv_packing, LANES)


def to_canonical(cache: jax.Array, dims: Dims) -> jax.Array:
    """What `from_canonical` made, back."""
    layers, pages, _, _, page_size, per_word, _ = cache.shape
    cache = cache.reshape(layers, pages, -1, dims.folds, page_size, per_word, LANES)
    cache = cache.transpose(0, 1, 4, 2, 5, 3, 6)
    cache = cache.reshape(layers, pages, page_size, -1, dims.folds * LANES)
    return cache[:, :, :, : 2 * dims.num_kv_heads, : dims.head_size]
