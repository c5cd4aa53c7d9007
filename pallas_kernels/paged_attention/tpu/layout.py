"""How the TPU kernels keep keys, values and queries: in words of 32 bits, so that one token is always whole words.

TPUs address memory in rows of 128 words of 32 bits. A row here holds, of one token and 128 elements of the head, as
many heads as fit in a word: of a bfloat16 cache the key and the value of one KV head, of an 8-bit cache those of two
heads, of a float32 cache one key or one value. A DMA can then move any run of tokens, and the kernel reads the rows of
one head as one dense block. Axis letters: F = head size / 128, J packs (rows per token) times F.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import CacheGeometry

LANES = 128


def packing(dtype: str | jnp.dtype) -> int:
    """Elements in a word of 32 bits."""
    return 4 // jnp.dtype(dtype).itemsize


def padded_head_size(head_size: int) -> int:
    """Head size rounded up to whole rows."""
    return -(-head_size // LANES) * LANES


def tpu_cache_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 1, J, C, packing, 128]; J = F * ceil(2K / packing), the KV heads, may be split over devices."""
    per_word = packing(geometry.dtype)
    packs = -(-2 * geometry.num_kv_heads // per_word) * (padded_head_size(geometry.head_size) // LANES)
    return (geometry.layers, geometry.pages, 1, packs, geometry.page_size, per_word, LANES)


@dataclass(frozen=True)
class Dims:
    """Static sizes of one call."""

    num_kv_heads: int
    group: int
    head_size: int
    page_size: int
    q_dtype: str
    kv_dtype: str

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
        """What the matrix units multiply: bfloat16 holds every value of the 8-bit types."""
        return "float32" if "float32" in (self.q_dtype, self.kv_dtype) else "bfloat16"

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer of the cache."""
        return self.packs * LANES * 4


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

    XLA interleaves elements of words a hundred times slower than it shifts and adds them.
    """
    tokens, bits = k.shape[0], 32 // dims.kv_packing
    pad = ((0, 0), (0, -dims.num_kv_heads % (dims.kv_packing // 2)), (0, dims.folds * LANES - dims.head_size))
    parts = []
    for values in (k, v):
        raw = jax.lax.bitcast_convert_type(jnp.pad(values, pad), jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
        parts.append(raw.reshape(tokens, -1, dims.kv_packing // 2, dims.folds, LANES))
    words = jnp.zeros_like(parts[0][:, :, 0])
    for index in range(dims.kv_packing):
        words |= parts[index % 2][:, :, index // 2] << jnp.uint32(index * bits)
    return words.reshape(tokens, dims.packs, 1, LANES)


def pack_q(q: jax.Array, dims: Dims) -> jax.Array:
    """Queries [T, N, H] as rows [T, K * F, group words, packing, 128]."""
    q = q.reshape(q.shape[0], dims.num_kv_heads, dims.group, dims.head_size)
    pad = (dims.group_rows - dims.group, dims.folds * LANES - dims.head_size)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, pad[0]), (0, pad[1])))
    q = q.reshape(q.shape[0], dims.num_kv_heads, dims.group_words, dims.q_packing, dims.folds, LANES)
    q = q.transpose(0, 1, 4, 2, 3, 5)
    return q.reshape(q.shape[0], dims.num_kv_heads * dims.folds, dims.group_words, dims.q_packing, LANES)


def unpack_q(rows: jax.Array, dims: Dims) -> jax.Array:
    """What `pack_q` made of [T, N, H], back."""
    shape = (rows.shape[0], dims.num_kv_heads, dims.folds, dims.group_words, dims.q_packing, LANES)
    q = rows.reshape(shape).transpose(0, 1, 3, 4, 2, 5)
    q = q.reshape(rows.shape[0], dims.num_kv_heads, dims.group_rows, dims.folds * LANES)
    return q[:, :, : dims.group, : dims.head_size].reshape(rows.shape[0], -1, dims.head_size)


def from_canonical(cache: jax.Array, dims: Dims) -> jax.Array:
    """[L, P, C, 2K, H] as [L, P, 1, J, C, packing, 128], for tests and tools; a running engine never converts."""
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
