"""Paged attention on CPUs over a cache of bfloat16 that is multiplied as it is, in pairs (`vdpbf16ps`).

The processor must be able to, see `cpu_common.processor`.
"""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Backend
from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex
from jaxllm.pallas_kernels.paged_attention.cpu.attention import MULTIPLE, call_kernel, transposed_shape
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, quantise


def to_pairs(cache: jax.Array, scale_bytes: int = 0) -> jax.Array:
    """A canonical cache as the kernel has it, [L, P, 2, K, C * H], for tests and tools.

    In a page, the keys of head 0 as [H / 2, C, 2], of head 1, ..., then the value heads as [C / 2, H, 2].
    """
    assert scale_bytes == 0
    keys, values = (each[:, :, 0] for each in jnp.split(head_major(cache), 2, axis=2))
    *outer, page_size, size = keys.shape
    keys = keys.reshape(*outer, page_size, size // 2, 2).swapaxes(-2, -3)
    values = values.reshape(*outer, page_size // 2, 2, size).swapaxes(-1, -2)
    return jnp.stack([each.reshape(*outer, -1) for each in (keys, values)], axis=2)


def from_pairs(cache: jax.Array, page_size: int, scale_bytes: int = 0) -> jax.Array:
    """The inverse of `to_pairs`."""
    assert scale_bytes == 0
    layers, pages, _, heads, page = cache.shape
    size, outer = page // page_size, (layers, pages, heads)
    keys = cache[:, :, 0].reshape(*outer, size // 2, page_size, 2).swapaxes(-2, -3)
    values = cache[:, :, 1].reshape(*outer, page_size // 2, size, 2).swapaxes(-1, -2)
    return canonical(jnp.stack([each.reshape(*outer, page_size, size) for each in (keys, values)], axis=2))


def paired_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. The cache is bfloat16, see `to_pairs`, and so are queries and results within the kernel.

    Raises:
        NotImplementedError: the cache is not bfloat16.
        ValueError: heads or pages are no multiples of 16.
    """
    _check(kv_cache)
    stored = quantise(k, options.k_scale, kv_cache.dtype), quantise(v, options.v_scale, kv_cache.dtype)
    arrays = (q.astype(jnp.bfloat16), *stored)
    heads = q.shape[1], k.shape[1]
    out, kv_cache = call_kernel(arrays, heads, kv_cache, layer, batch, options, None, paired=True)
    return out.astype(q.dtype), kv_cache


def paired_indexed_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    index: AnyIndex,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`, and `paired_attention`. Queries of the index are bfloat16, too.

    Raises:
        NotImplementedError: the cache is not bfloat16, or the index scores groups of keys by their means.
        ValueError: heads, pages or blocks are no multiples of 16.
    """
    _check(kv_cache)
    joined = index.joined(k, v)
    stored = (
        quantise(joined[0], options.k_scale, kv_cache.dtype),
        quantise(joined[1], options.v_scale, kv_cache.dtype),
    )
    arrays, heads = (q.astype(jnp.bfloat16), *stored), (q.shape[1], k.shape[1])
    # The kernel takes rows as long as those of float32.
    lanes = ((0, 0), (0, 0), (0, 2 * q.shape[2] - index.query.shape[2]))
    own = index, jnp.pad(index.query.astype(jnp.bfloat16), lanes)
    out, kv_cache = call_kernel(arrays, heads, kv_cache, layer, batch, options, None, paired=True, index=own)
    return out.astype(q.dtype), kv_cache


def merged_pairs(
    qkv: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `merged_attention`. Queries, keys, values, cache and results are bfloat16; angles are float32.

    Raises:
        NotImplementedError: the cache is not bfloat16.
        ValueError: half a head is no multiple of 16.
    """
    _check(kv_cache)
    cos, sin = (each.astype(jnp.float32) for each in rotation)
    head_size = 2 * cos.shape[1]
    if cos.shape[1] % MULTIPLE:
        raise ValueError(f"heads of {head_size}: the size must be a multiple of {2 * MULTIPLE}")
    tokens, num_heads = qkv.shape[0], qkv.shape[1] // head_size - 2 * kv_cache.shape[3]
    arrays, heads = (qkv.astype(jnp.bfloat16).reshape(tokens, -1, head_size),) * 3, (num_heads, kv_cache.shape[3])
    out, kv_cache = call_kernel(arrays, heads, kv_cache, layer, batch, options, (cos, sin), paired=True)
    return out.reshape(tokens, num_heads * head_size), kv_cache


def _check(kv_cache: jax.Array) -> None:
    if kv_cache.dtype != jnp.bfloat16:
        raise NotImplementedError(f"pairs of {kv_cache.dtype}: only bfloat16 is multiplied in pairs; use 'cpu'")


def supports_merged(head_size: int, dtype: str, stored: str, scale_bytes: int) -> bool:
    """See `Backend.supports_merged`."""
    return stored == dtype == "bfloat16" and scale_bytes == 0 and head_size % (2 * MULTIPLE) == 0


BACKEND = Backend(
    paired_attention,
    transposed_shape,
    from_canonical=to_pairs,
    to_canonical=from_pairs,
    merged=merged_pairs,
    supports_merged=supports_merged,
    supports_spans=True,
    call_indexed=paired_indexed_attention,
    page_size=lambda shape, head_size: shape[4] // head_size,
)
