"""The shape in which each implementation of paged attention keeps the KV cache."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.tpu.layout import tpu_cache_shape


@dataclass(frozen=True)
class CacheGeometry:
    """What a cache holds: L layers, P pages of C tokens, K KV heads of size H, in an array type (NumPy's name)."""

    layers: int
    pages: int
    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: str


def canonical_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, C, 2K, H]: in a page, key head 0, value head 0, key head 1, ..."""
    return (geometry.layers, geometry.pages, geometry.page_size, 2 * geometry.num_kv_heads, geometry.head_size)


def head_major_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 2, K, C, H]: in a page, all tokens of key head 0, of key head 1, ..., then of the value heads."""
    return (geometry.layers, geometry.pages, 2, geometry.num_kv_heads, geometry.page_size, geometry.head_size)


def head_major(cache: jax.Array) -> jax.Array:
    """A canonical cache in that shape, for tests and tools; a running engine never converts."""
    layers, pages, page_size, twice_heads, head_size = cache.shape
    return cache.reshape(layers, pages, page_size, twice_heads // 2, 2, head_size).transpose(0, 1, 4, 3, 2, 5)


def canonical(cache: jax.Array) -> jax.Array:
    """What `head_major` made, back."""
    layers, pages, _, num_kv_heads, page_size, head_size = cache.shape
    return cache.transpose(0, 1, 4, 3, 2, 5).reshape(layers, pages, page_size, 2 * num_kv_heads, head_size)


def transposed_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 2, K, C * H]: in a page, the keys of head 0 as [H, C], of head 1, ..., then the value heads as [C, H]."""
    page = geometry.page_size * geometry.head_size
    return (geometry.layers, geometry.pages, 2, geometry.num_kv_heads, page)


def transposed(cache: jax.Array) -> jax.Array:
    """A canonical cache in that shape, for tests and tools."""
    keys_and_values = head_major(cache)
    keys, values = keys_and_values[:, :, 0].swapaxes(-1, -2), keys_and_values[:, :, 1]
    return jnp.stack([each.reshape(*each.shape[:3], -1) for each in (keys, values)], axis=2)


def from_transposed(cache: jax.Array, page_size: int) -> jax.Array:
    """What `transposed` made, back."""
    layers, pages, _, heads, page = cache.shape
    keys = cache[:, :, 0].reshape(layers, pages, heads, page // page_size, page_size).swapaxes(-1, -2)
    values = cache[:, :, 1].reshape(keys.shape)
    return canonical(jnp.stack([keys, values], axis=2))


SHAPES: dict[str, Callable[[CacheGeometry], tuple[int, ...]]] = {
    "tpu": tpu_cache_shape,
    "xla": head_major_shape,
    "cpu": transposed_shape,
}
"""By implementation, where it is not the canonical one."""


def cache_shape(implementation: str, geometry: CacheGeometry) -> tuple[int, ...]:
    """Shape of the cache that `implementation` reads and writes.

    In all of them axis 0 is the layer, axis 1 the page, and axis 3 the KV heads, which may be split over devices.
    """
    return SHAPES.get(implementation, canonical_shape)(geometry)


def to_layout(implementation: str, cache: jax.Array) -> jax.Array:
    """A canonical cache as `implementation` has it, for tests and tools; a running engine never converts.

    Not for `tpu`, whose layout only its kernel reads.
    """
    convert = {"xla": head_major, "cpu": transposed}.get(implementation)
    return cache if convert is None else convert(cache)


def from_layout(implementation: str, cache: jax.Array, page_size: int) -> jax.Array:
    """What `to_layout` made of a cache with pages of `page_size` tokens, back."""
    if implementation == "cpu":
        return from_transposed(cache, page_size)
    return canonical(cache) if implementation == "xla" else cache
