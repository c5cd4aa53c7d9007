"""Paged attention on CPUs: the arguments of the kernel's call."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.cpu.targets import attention, default_folder, provide
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch, quantise

MULTIPLE = 16
"""What heads and pages must be multiples of: whole vectors, on processors with the longest."""


def cpu_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    *,
    scale: float,
    window: int | jax.Array | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    k_scale: float | jax.Array | None = None,
    v_scale: float | jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. The cache is [L, P, 2, K, C * H], see `layout.transposed_shape`.

    Raises:
        ValueError: heads or pages are no multiples of 16.
    """
    if q.shape[2] % MULTIPLE or kv_cache.shape[4] // q.shape[2] % MULTIPLE:
        raise ValueError(
            f"heads of {q.shape[2]} and pages of {kv_cache.shape[4] // q.shape[2]} for {MULTIPLE} at a time"
        )
    dtype = kv_cache.dtype.name
    target = attention(dtype)
    provide([target], default_folder())
    num_heads = q.shape[1]
    none = jnp.zeros(num_heads, jnp.float32)
    ints = [layer, 0 if window is None else window, batch.num_requests, batch.num_tokens]
    ints += [int(sinks is not None), int(alibi_slopes is not None)]
    stored = k, v
    if k_scale is not None or v_scale is not None or not k.dtype == kv_cache.dtype == jnp.float32:
        stored = quantise(k, k_scale, kv_cache.dtype), quantise(v, v_scale, kv_cache.dtype)
    k_factor, v_factor = (1.0 if factor is None else factor for factor in (k_scale, v_scale))
    floats = jnp.stack([jnp.float32(each) for each in (scale * k_factor, soft_cap or 0.0, v_factor)])
    out, kv_cache = jax.ffi.ffi_call(
        target,
        (jax.ShapeDtypeStruct(q.shape, jnp.float32), jax.ShapeDtypeStruct(kv_cache.shape, kv_cache.dtype)),
        input_output_aliases={3: 1},
    )(
        q.astype(jnp.float32),
        *stored,
        kv_cache,
        batch.positions,
        batch.query_start,
        batch.page_table,
        jnp.stack([jnp.int32(each) for each in ints]),
        jnp.concatenate(
            [floats, *(none if each is None else jnp.asarray(each, jnp.float32) for each in (sinks, alibi_slopes))]
        ),
    )
    return out.astype(q.dtype), kv_cache
