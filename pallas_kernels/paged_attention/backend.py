"""The protocol of a backend of paged attention, and the registry of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

import jax

from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

Attended = tuple[jax.Array, jax.Array]
"""Results [T, N, H] and the updated cache."""


@dataclass(frozen=True)
class Heads:
    """Attention of all layers, on one device: N query heads, K KV heads of size H, the cache's type (NumPy's name)."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    kv_dtype: str
    windows: frozenset[int]
    """Sliding windows that are known when compiled; 0 is none."""
    most_short: int = 1
    """Tokens of rows that are expected to have few: of decodes with drafts. 1: there are none."""


@dataclass(frozen=True)
class CacheGeometry:
    """The geometry of a cache: L layers, P pages of C tokens, K KV heads of size H, in an array type (NumPy's name)."""

    layers: int
    pages: int
    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    for_tpu: bool = False
    """Whether the cache is to be an array that TPUs neither pad nor copy, where an implementation has two shapes."""


class PagedAttention(Protocol):
    """`paged_attention` without the choice."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: AttentionOptions,
    ) -> Attended:
        """See `paged_attention`."""
        ...


class IndexedAttention(Protocol):
    """`paged_attention` with an index, without the choice."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: AttentionOptions,
        index: AnyIndex,
    ) -> Attended:
        """See `paged_attention`."""
        ...


class MergedAttention(Protocol):
    """Paged attention of queries, keys and values as one product makes them, before the rotary embedding."""

    def __call__(
        self,
        qkv: jax.Array,
        rotation: tuple[jax.Array, jax.Array],
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: AttentionOptions,
    ) -> Attended:
        """[T, N * H] from `qkv` [T, (N + 2 K) * H]; `rotation` is cosine and sine [T, H / 2]."""
        ...


def canonical_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, C, 2K, H]: in a page, key head 0, value head 0, key head 1, ..."""
    return (geometry.layers, geometry.pages, geometry.page_size, 2 * geometry.num_kv_heads, geometry.head_size)


@dataclass(frozen=True)
class Backend:
    """An implementation of paged attention."""

    call: PagedAttention
    cache_shape: Callable[[CacheGeometry], tuple[int, ...]] = canonical_shape
    """Axis 0 is the layer, axis 1 the page, and axis 3 the KV heads, which may be split over devices."""
    prepare: Callable[[RaggedBatch, Heads], RaggedBatch] = lambda batch, heads: batch
    """Adds to a batch what would otherwise be made in every layer; `call` also takes a batch without."""
    from_canonical: Callable[..., jax.Array] = lambda cache, scale_bytes=0: cache
    """A cache of `canonical_shape` as `call` has it, for tests and tools; a running engine never converts.

    `from_canonical(cache, scale_bytes=0)`, where so many of each stored head are its scale. Not for `tpu`, whose layout
    only its kernel reads.
    """
    to_canonical: Callable[..., jax.Array] = lambda cache, page_size, scale_bytes=0: cache
    """`to_canonical(cache, page_size, scale_bytes=0)`: what `from_canonical` made of a cache with such pages, back."""
    page_size: Callable[[tuple[int, ...], int], int] = lambda shape, head_size: shape[2]
    """Tokens of a page, from the shape of a cache and the size of stored heads."""
    supports_spans: bool = False
    """Whether tokens may see later ones of their row, see `RaggedBatch.visible_until`."""
    call_indexed: IndexedAttention | None = None
    """Attention to the keys that an index chooses; None where it is not implemented."""
    merged: MergedAttention | None = None
    supports_merged: Callable[[int, str, str, int], bool] = lambda head_size, dtype, stored, scale_bytes: False
    """Whether `merged` can, for heads of a size, activations and a cache of types (NumPy's names), and so many bytes of
    scales after each stored head.
    """
    merges_norms: bool = False
    """Whether `merged` normalises heads, see `AttentionOptions.head_norms`."""


BACKENDS: Mapping[str, str] = {
    "reference": "reference",
    "xla": "xla.attention",
    "tpu": "tpu.attention",
    "gpu": "gpu.attention",
    "triton": "triton.attention",
    "cpu": "cpu.attention",
    "cpu_pairs": "cpu.pairs",
}
"""The module that has each as its `BACKEND`: `reference` is slow and obvious, `xla` runs everywhere, `tpu` is a Mosaic
kernel, `gpu` a Mosaic kernel for Hopper, `triton` a kernel for GPUs since Ampere, `cpu` a kernel compiled by Numba,
`cpu_pairs` the same for processors that multiply pairs of bfloat16 (AVX512-BF16)."""


def get_backend(name: str) -> Backend:
    """A backend by its name. Other machines do not load its compiler. Raises `KeyError` where there is none."""
    module = import_module(f"{__package__}.{BACKENDS[name]}")
    return cast(Backend, module.BACKEND)
