"""The shape in which each implementation of paged attention keeps the KV cache."""

from collections.abc import Callable
from dataclasses import dataclass

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


SHAPES: dict[str, Callable[[CacheGeometry], tuple[int, ...]]] = {"tpu": tpu_cache_shape}
"""By implementation, where it is not the canonical one."""


def cache_shape(implementation: str, geometry: CacheGeometry) -> tuple[int, ...]:
    """Shape of the cache that `implementation` reads and writes.

    In all of them axis 0 is the layer, axis 1 the page, and axis 3 the KV heads, which may be split over devices.
    """
    return SHAPES.get(implementation, canonical_shape)(geometry)
