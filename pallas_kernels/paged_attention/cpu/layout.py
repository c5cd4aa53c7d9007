"""The shape in which the kernel for CPUs keeps the KV cache."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import CacheGeometry
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major


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
