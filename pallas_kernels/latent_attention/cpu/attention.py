"""Latent attention on CPUs: the arguments of the kernel's call."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.latent_attention.backend import LatentBackend, LatentOptions, LatentSizes
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, quantise

MULTIPLE = 16
"""The multiple that sizes and pages must be: whole vectors, on processors with the longest."""
CACHE_BYTES = {"float32": 4, "bfloat16": 2}
"""Types of cache that the kernel reads, and their bytes."""


def latent_attention_target(dtype: str, *, paired: bool = False) -> Target:
    """The kernel for a cache of a type (NumPy's name); `paired` if bfloat16 is multiplied as it is."""
    name = f"jaxllm_latent_attention_{dtype}{'_pairs' if paired else ''}"
    return Target(name, partial(_build, dtype, paired=paired), Path(__file__).parent)


def _build(dtype: str, *, paired: bool) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.latent_attention.cpu.kernel import make_kernel

    # For pairs: `cpu_common.bfloat16.PAIRS`.
    return build(make_kernel(f"{dtype}_pairs" if paired else dtype, CACHE_BYTES[dtype]))


def refusal(sizes: LatentSizes, page_size: int, dtype: str) -> str | None:
    """The sizes that the kernel would need if it cannot do these; `dtype` is the cache's (NumPy's name)."""
    if dtype in CACHE_BYTES and not any(each % MULTIPLE for each in (sizes.latent, sizes.rope, page_size)):
        return None
    return (
        f"needs latent, rotary and page sizes that are multiples of {MULTIPLE} and a cache in "
        f"{' or '.join(CACHE_BYTES)}, not {sizes.latent}, {sizes.rope}, {page_size} and {dtype}"
    )


def cpu_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `latent_attention`.

    Raises:
        ValueError: sizes or pages are no multiples of 16.
    """
    arrays = (q_latent, q_rope, latent, k_rope, kv_cache)
    return call_kernel(*arrays, layer, batch, options, paired=False)


def call_kernel(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    *,
    paired: bool,
) -> tuple[jax.Array, jax.Array]:
    """`cpu_latent_attention`, or if `paired` that of `cpu.pairs`, whose queries and results are bfloat16."""
    sizes, dtype = LatentSizes(latent.shape[1], k_rope.shape[1]), kv_cache.dtype
    problem = refusal(sizes, kv_cache.shape[2], dtype.name)
    if problem is not None:
        raise ValueError(f"latent attention on CPUs {problem}")
    target, kind = latent_attention_target(dtype.name, paired=paired), jnp.bfloat16 if paired else jnp.float32
    provide(target)
    # In float32 the kernel itself writes only finite values.
    new = [each if each.dtype == dtype == jnp.float32 else quantise(each, None, dtype) for each in (latent, k_rope)]
    ints = [layer, batch.num_requests, batch.num_tokens]
    out, kv_cache = jax.ffi.ffi_call(
        target.name,
        (jax.ShapeDtypeStruct(q_latent.shape, kind), jax.ShapeDtypeStruct(kv_cache.shape, dtype)),
        input_output_aliases={4: 1},
    )(
        q_latent.astype(kind),
        q_rope.astype(kind),
        *new,
        kv_cache,
        batch.positions,
        batch.query_start,
        batch.page_table,
        jnp.stack([jnp.int32(each) for each in ints]),
        jnp.asarray([options.scale, 0.0], jnp.float32),
    )
    return out.astype(q_latent.dtype), kv_cache


BACKEND = LatentBackend(cpu_latent_attention)
