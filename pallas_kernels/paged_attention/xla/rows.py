"""XLA's attention over a cache whose minor dimension is whole rows of 128 lanes, as TPUs address memory.

Of a narrower one a TPU would pad every row, and XLA copies it in every layer: an argument it keeps with the pages along
the lanes, what it indexes with elements of heads along them.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Attended, PagedAttention
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def attend_shared_rows(
    attend: PagedAttention,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> Attended:
    """`attend`, with heads as wide as the cache has them: several side by side, or padded."""
    if kv_cache.shape[-1] == q.shape[-1] + options.scale_bytes:
        return attend(q, k, v, kv_cache, layer, batch, options)
    shared = SharedRows(k.shape[1], q.shape[1] // k.shape[1], q.shape[2])
    lanes = ((0, 0), (0, 0), (0, kv_cache.shape[-1] - shared.wide_size))
    q, k, v = (jnp.pad(heads, lanes) for heads in (shared.spread(q), shared.join(k), shared.join(v)))
    sinks, slopes = (
        None if values is None else shared.pad_queries(values, axis=0)
        for values in (options.sinks, options.alibi_slopes)
    )
    options = replace(options, sinks=sinks, alibi_slopes=slopes)
    out, kv_cache = attend(q, k, v, kv_cache, layer, batch, options)
    return shared.own(out[..., : shared.wide_size]), kv_cache
