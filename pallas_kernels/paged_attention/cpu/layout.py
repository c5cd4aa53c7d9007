"""The shape in which the kernel for CPUs keeps the KV cache."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import CacheGeometry
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import SCALE
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major


def transposed_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 2, K, C * H]: in a page, the keys of head 0 as [H, C], of head 1, ..., then the value heads as [C, H].

    Scales by token lie after each of these, float32 [C], not after each of their rows.
    """
    page = geometry.page_size * geometry.head_size
    return (geometry.layers, geometry.pages, 2, geometry.num_kv_heads, page)


def to_transposed(cache: jax.Array, scale_bytes: int = 0) -> jax.Array:
    """A canonical cache in that shape, for tests and tools."""
    both = head_major(cache)
    size = both.shape[5] - scale_bytes
    keys, values = both[:, :, 0, ..., :size].swapaxes(-1, -2), both[:, :, 1, ..., :size]
    numbers = jnp.stack([each.reshape(*each.shape[:3], -1) for each in (keys, values)], axis=2)
    scales, unused = both[..., size : size + SCALE], both[..., size + SCALE :]
    return jnp.concatenate([numbers, *(each.reshape(*each.shape[:4], -1) for each in (scales, unused))], axis=-1)


def from_transposed(cache: jax.Array, page_size: int, scale_bytes: int = 0) -> jax.Array:
    """What `to_transposed` made, back."""
    end = cache.shape[4] - page_size * scale_bytes
    numbers, scales, unused = jnp.split(cache, [end, end + page_size * min(scale_bytes, SCALE)], axis=-1)
    layers, pages, _, heads, page = numbers.shape
    keys = numbers[:, :, 0].reshape(layers, pages, heads, page // page_size, page_size).swapaxes(-1, -2)
    values = numbers[:, :, 1].reshape(keys.shape)
    both = jnp.stack([keys, values], axis=2)
    behind = [each.reshape(*both.shape[:5], -1) for each in (scales, unused) if each.shape[-1]]
    return canonical(jnp.concatenate([both, *behind], axis=-1))
