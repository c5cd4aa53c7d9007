"""Ragged paged attention: one operation for any mix of prefill chunks and decodes."""

import jax

from jaxllm.pallas_kernels.paged_attention.backend import CacheGeometry, Heads, get_backend
from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex
from jaxllm.pallas_kernels.paged_attention.local_chunks import chunked_batch
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    *,
    index: AnyIndex | None = None,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Write the step's keys and values into their pages, then let every token attend to its request so far.

    Axis letters: T tokens, R rows, W page-table width, L layers, P pages, C page size, N query heads, K KV heads,
    H head size. The layout of the cache follows "Ragged Paged Attention" (arXiv 2604.15464): in a page, key head 0,
    value head 0, key head 1, ... The cache of all layers is one array indexed inside, so that a scan carries it
    without a copy.

    Args:
        q: [T, N, H] queries, rotated.
        k: [T, K, H] keys, rotated.
        v: [T, K, H] values.
        kv_cache: [L, P, C, 2K, H], or as `cache_shape` says for the implementation; all finite (begin with zeros).
            Donate it to have it updated in place. Of implementations with an index it may have more heads than keys.
        layer: which layer of the cache.
        batch: where each token sits.
        options: scale, window, and what is done to scores and stored values.
        index: what chooses the keys that each token sees; None: it sees all of them. Its keys are one more KV head of
            the cache. There are no windows, biases by distance, sinks or spans with it.
        implementation: a name in `backend.BACKENDS`; never replaced by another.

    Returns:
        [T, N, H] in the dtype of `q` (padding tokens unspecified but finite) and the updated cache.

    Raises:
        KeyError: no implementation of that name.
        NotImplementedError: tokens see later ones (`RaggedBatch.visible_until`), or keys are chosen by an index, which
            it does not support.
    """
    backend = get_backend(implementation)
    if batch.visible_until is not None and not backend.supports_spans:
        raise NotImplementedError(f"{implementation!r}: tokens that see later ones")
    # The name in profiles and in compiled programs.
    with jax.named_scope("paged_attention"):
        if index is None:
            return backend.call(q, k, v, kv_cache, layer, batch, options)
        if backend.call_indexed is None:
            raise NotImplementedError(f"{implementation!r}: keys that an index chooses")
        return backend.call_indexed(q, k, v, kv_cache, layer, batch, options, index)


def prepare(implementation: str, batch: RaggedBatch, heads: Heads) -> RaggedBatch:
    """A batch for all layers of a step: `paged_attention` takes it in place of `batch`, and gives the same."""
    return get_backend(implementation).prepare(batch, heads)


def prepare_chunked(
    implementation: str, batch: RaggedBatch, chunk: int, kv_cache: jax.Array, head_size: int
) -> RaggedBatch:
    """The batch of layers whose attention stays within chunks of so many positions, see `chunked_batch`."""
    return chunked_batch(batch, chunk, get_backend(implementation).page_size(kv_cache.shape, head_size))


def cache_shape(implementation: str, geometry: CacheGeometry) -> tuple[int, ...]:
    """Shape of the cache that `implementation` reads and writes, see `Backend.cache_shape`."""
    return get_backend(implementation).cache_shape(geometry)
