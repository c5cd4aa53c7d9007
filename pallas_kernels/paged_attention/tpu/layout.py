"""How the TPU kernels keep keys, values and queries: in words of 32 bits, so that one token is always whole words.

TPUs address memory in rows of 128 words of 32 bits. A row here holds, of one token and 128 elements of the head, as
many heads as fit in a word: of a bfloat16 cache the key and the value of one KV head, of an 8-bit cache those of two
heads, of a float32 cache one key or one value. A DMA can then move any run of tokens, and the kernel reads the rows of
one head as one dense block. Heads here are those that the kernels see, see `shared_rows`. Axis letters: F = head size /
128, J packs (rows per token) times F.
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import CacheGeometry
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, cached_places
from jaxllm.pallas_kernels.tpu_common.constants import LANES


def packing(dtype: str | jnp.dtype) -> int:
    """Elements in a word of 32 bits."""
    return 4 // jnp.dtype(dtype).itemsize


def padded_head_size(head_size: int) -> int:
    """Head size rounded up to whole rows."""
    return -(-head_size // LANES) * LANES


@dataclass(frozen=True)
class Dims:
    """Static sizes of one call, with the heads that the kernels see."""

    num_kv_heads: int
    group: int
    head_size: int
    page_size: int
    q_dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, shared: SharedRows, page_size: int, q_dtype: str, kv_dtype: str) -> Self:
        """The layout of heads that share rows."""
        return cls(shared.rows, shared.wide_group, shared.wide_size, page_size, q_dtype, kv_dtype)

    @property
    def folds(self) -> int:
        """F, rows that one head's elements take."""
        return padded_head_size(self.head_size) // LANES

    @property
    def kv_packing(self) -> int:
        """Elements of the cache in a word."""
        return packing(self.kv_dtype)

    @property
    def q_packing(self) -> int:
        """Elements of the queries in a word."""
        return packing(self.q_dtype)

    @property
    def packs(self) -> int:
        """J, rows that one token takes in the cache."""
        return -(-2 * self.num_kv_heads // self.kv_packing) * self.folds

    @property
    def group_words(self) -> int:
        """Rows that the query heads of one KV head take, per fold."""
        return -(-self.group // self.q_packing)

    @property
    def group_rows(self) -> int:
        """Query heads per KV head, rounded up to whole words."""
        return self.group_words * self.q_packing

    @property
    def compute_dtype(self) -> str:
        """The dtype that the matrix units multiply: bfloat16 holds every value of the 8-bit types."""
        return "float32" if "float32" in (self.q_dtype, self.kv_dtype) else "bfloat16"

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer of the cache."""
        return self.packs * LANES * 4


def tpu_cache_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 1, J, C, packing, 128]; J, the KV heads, may be split over devices."""
    shared = SharedRows(geometry.num_kv_heads, 1, geometry.head_size)
    dims = Dims.of(shared, geometry.page_size, geometry.dtype, geometry.dtype)
    return (geometry.layers, geometry.pages, 1, dims.packs, geometry.page_size, dims.kv_packing, LANES)


def pack_kv(k: jax.Array, v: jax.Array, dims: Dims) -> jax.Array:
    """Stored keys and values [T, K, H] as rows [T, J, packing, 128]."""
    tokens = k.shape[0]
    both = jnp.stack([k, v], axis=2).reshape(tokens, 2 * dims.num_kv_heads, dims.head_size)
    heads = dims.packs // dims.folds * dims.kv_packing
    pad = (heads - both.shape[1], dims.folds * LANES - dims.head_size)
    both = jnp.pad(both, ((0, 0), (0, pad[0]), (0, pad[1])))
    both = both.reshape(tokens, -1, dims.kv_packing, dims.folds, LANES)
    return both.transpose(0, 1, 3, 2, 4).reshape(tokens, dims.packs, dims.kv_packing, LANES)


def pack_kv_words(k: jax.Array, v: jax.Array, dims: Dims) -> jax.Array:
    """The bits of `pack_kv` as words, uint32 [T, J, 1, 128], of types with several elements in a word.

    XLA interleaves elements of words a hundred times slower than it shifts and adds them, and takes heads apart several
    times slower by an axis of their own than as columns.
    """
    tokens, bits, heads = k.shape[0], 32 // dims.kv_packing, dims.kv_packing // 2
    pad = ((0, 0), (0, -dims.num_kv_heads % heads), (0, dims.folds * LANES - dims.head_size))
    words = jnp.zeros((), jnp.uint32)
    for which, values in enumerate((k, v)):
        raw = jax.lax.bitcast_convert_type(jnp.pad(values, pad).reshape(tokens, -1), jnp.dtype(f"uint{bits}"))
        words |= raw.astype(jnp.uint32) << jnp.uint32(which * bits)
    if heads > 1:
        columns = jnp.split(words, words.shape[1] // (dims.folds * LANES), axis=1)
        pairs = zip(columns[0::2], columns[1::2], strict=True)
        words = jnp.concatenate([first | second << jnp.uint32(2 * bits) for first, second in pairs], axis=1)
    return words.reshape(tokens, dims.packs, 1, LANES)


def packed_rows(kv_cache: jax.Array, layer: int | jax.Array, batch: RaggedBatch) -> jax.Array:
    """The rows [T, J, packing, 128] of the step's tokens in the cache, as `pack_kv` has made them."""
    page, offset = cached_places(batch, kv_cache.shape[4])
    return kv_cache.at[layer, page, 0, :, offset].get(mode="promise_in_bounds")


def words_of(rows: jax.Array) -> jax.Array:
    """The bits of rows [T, J, packing, 128] as words, see `pack_kv_words`."""
    bits = 32 // rows.shape[2]
    raw = jax.lax.bitcast_convert_type(rows, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
    words = jnp.zeros_like(raw[:, :, 0])
    for index in range(rows.shape[2]):
        words |= raw[:, :, index] << jnp.uint32(index * bits)
    return words[:, :, None]


def pack_q(q: jax.Array, dims: Dims) -> jax.Array:
    """Queries [T, N, H] as rows [T, K * F, group words, packing, 128]."""
    q = q.reshape(q.shape[0], dims.num_kv_heads, dims.group, dims.head_size)
    pad = (dims.group_rows - dims.group, dims.folds * LANES - dims.head_size)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, pad[0]), (0, pad[1])))
    q = q.reshape(q.shape[0], dims.num_kv_heads, dims.group_words, dims.q_packing, dims.folds, LANES)
    q = q.transpose(0, 1, 4, 2, 3, 5)
    return q.reshape(q.shape[0], dims.num_kv_heads * dims.folds, dims.group_words, dims.q_packing, LANES)


def unpack_q(rows: jax.Array, dims: Dims) -> jax.Array:
    """The inverse of `pack_q`: [T, N, H]."""
    shape = (rows.shape[0], dims.num_kv_heads, dims.folds, dims.group_words, dims.q_packing, LANES)
    q = rows.reshape(shape).transpose(0, 1, 3, 4, 2, 5)
    q = q.reshape(rows.shape[0], dims.num_kv_heads, dims.group_rows, dims.folds * LANES)
    return q[:, :, : dims.group, : dims.head_size].reshape(rows.shape[0], -1, dims.head_size)


def to_rows(cache: jax.Array, dims: Dims) -> jax.Array:
    """A cache [L, P, C, 2K, H] as [L, P, 1, J, C, packing, 128], for tests and tools."""
    layers, pages, page_size, twice_heads, head_size = cache.shape
    heads = dims.packs // dims.folds * dims.kv_packing
    pad = ((0, 0), (0, 0), (0, 0), (0, heads - twice_heads), (0, dims.folds * LANES - head_size))
    cache = jnp.pad(cache, pad)
    cache = cache.reshape(layers, pages, page_size, -1, dims.kv_packing, dims.folds, LANES)
    cache = cache.transpose(0, 1, 3, 5, 2, 4, 6)
    return cache.reshape(layers, pages, 1, dims.packs, page_size, dims.kv_packing, LANES)


def from_rows(cache: jax.Array, dims: Dims) -> jax.Array:
    """The inverse of `to_rows`."""
    layers, pages, _, _, page_size, per_word, _ = cache.shape
    cache = cache.reshape(layers, pages, -1, dims.folds, page_size, per_word, LANES)
    cache = cache.transpose(0, 1, 4, 2, 5, 3, 6)
    cache = cache.reshape(layers, pages, page_size, -1, dims.folds * LANES)
    return cache[:, :, :, : 2 * dims.num_kv_heads, : dims.head_size]
