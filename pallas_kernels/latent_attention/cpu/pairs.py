"""Latent attention on CPUs over a cache of bfloat16 that is multiplied as it is, in pairs (`vdpbf16ps`).

The processor must be able to, see `cpu_common.processor`. The cache is the same as without pairs.
"""

from typing import get_args

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.latent_attention.backend import LatentBackend, LatentFeature, LatentOptions, LatentSizes
from jaxllm.pallas_kernels.latent_attention.cpu.attention import MULTIPLE, call_kernel, indexed_by
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def paired_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `latent_attention`. The cache is bfloat16, and so are queries and results within the kernel.

    Raises:
        ValueError: the cache is not bfloat16, pages are no multiples of 16, or keys are no multiples of 32.
    """
    sizes = LatentSizes(latent.shape[1], k_rope.shape[1])
    if kv_cache.dtype != jnp.bfloat16 or sizes.key % (2 * MULTIPLE):
        raise ValueError(f"pairs of {kv_cache.dtype} of keys of {sizes.key}: needs bfloat16 and a multiple of 32")
    arrays = (q_latent, q_rope, latent, k_rope, kv_cache)
    out, kv_cache = call_kernel(*arrays, layer, batch, options, paired=True)
    return out.astype(q_latent.dtype), kv_cache


BACKEND = LatentBackend(
    paired_latent_attention, supports=frozenset(get_args(LatentFeature)), call_indexed=indexed_by(paired=True)
)
