"""The shape in which XLA's implementation keeps the KV cache."""

import jax

from jaxllm.pallas_kernels.paged_attention.backend import CacheGeometry
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows


def head_major_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 2, K, C, H]: in a page, all tokens of key head 0, of key head 1, ..., then of the value heads.

    For TPUs with heads that share rows in place of K, and H rounded up to whole rows.
    """
    heads, size = geometry.num_kv_heads, geometry.head_size
    if geometry.for_tpu:
        shared = SharedRows(heads, 1, size)
        heads, size = shared.rows, shared.lanes
    return (geometry.layers, geometry.pages, 2, heads, geometry.page_size, size)


def head_major(cache: jax.Array) -> jax.Array:
    """A canonical cache in that shape, for tests and tools; a running engine never converts."""
    layers, pages, page_size, twice_heads, head_size = cache.shape
    return cache.reshape(layers, pages, page_size, twice_heads // 2, 2, head_size).transpose(0, 1, 4, 3, 2, 5)


def canonical(cache: jax.Array) -> jax.Array:
    """The inverse of `head_major`."""
    layers, pages, _, num_kv_heads, page_size, head_size = cache.shape
    return cache.transpose(0, 1, 4, 3, 2, 5).reshape(layers, pages, page_size, 2 * num_kv_heads, head_size)
