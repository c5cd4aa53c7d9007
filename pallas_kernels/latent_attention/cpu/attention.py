"""Latent attention on CPUs: the arguments of the kernel's call."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.latent_attention.backend import (
    ChosenKeys,
    IndexedLatentAttention,
    LatentBackend,
    LatentFeature,
    LatentOptions,
    LatentSizes,
)
from jaxllm.pallas_kernels.latent_attention.xla_indexed import indexed_with
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, quantise

MULTIPLE = 16
"""The multiple that sizes and pages must be: whole vectors, on processors with the longest."""
CACHE_BYTES = {"float32": 4, "bfloat16": 2}
"""Types of cache that the kernel reads, and their bytes."""


def latent_attention_target(dtype: str, *, paired: bool = False, is_chosen: bool = False) -> Target:
    """The kernel for a cache of a type (NumPy's name); `paired` if bfloat16 is multiplied as it is.

    If `is_chosen` it attends to keys that an index has chosen.
    """
    name = f"jaxllm_latent_attention_{dtype}{'_pairs' if paired else ''}{'_chosen' if is_chosen else ''}"
    return Target(name, partial(_build, dtype, paired=paired, is_chosen=is_chosen), Path(__file__).parent)


def _build(dtype: str, *, paired: bool, is_chosen: bool) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.latent_attention.cpu.kernel import make_kernel

    # For pairs: `cpu_common.bfloat16.PAIRS`.
    return build(make_kernel(f"{dtype}_pairs" if paired else dtype, CACHE_BYTES[dtype], is_chosen=is_chosen))


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
    problem = refusal(LatentSizes(latent.shape[1], k_rope.shape[1]), kv_cache.shape[2], kv_cache.dtype.name)
    if problem is not None:
        raise ValueError(f"latent attention on CPUs {problem}")
    target = latent_attention_target(kv_cache.dtype.name, paired=paired)
    if not options.writes:
        return _read(target, q_latent, q_rope, kv_cache, layer, batch, options, paired=paired), kv_cache
    arrays = _arguments(q_latent, q_rope, (latent, k_rope), kv_cache, layer, batch, options, paired=paired)
    shapes = jax.ShapeDtypeStruct(q_latent.shape, arrays[0].dtype), jax.ShapeDtypeStruct(kv_cache.shape, kv_cache.dtype)
    provide(target)
    out, kv_cache = jax.ffi.ffi_call(target.name, shapes, input_output_aliases={4: 1})(*arrays)
    return out.astype(q_latent.dtype), kv_cache


def attend_to_places(
    q_latent: jax.Array,
    q_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    rows: RaggedBatch,
    options: LatentOptions,
    *,
    paired: bool,
) -> jax.Array:
    """Attention to keys that may lie anywhere, [T, N, Z].

    Args:
        q_latent: [T, N, Z].
        q_rope: [T, N, Y]; Y may be 0.
        kv_cache: [L, P, C, S], whose tokens begin with a key of Z + Y numbers.
        layer: see `latent_attention`.
        rows: each token is a row, whose page table has the places [P * C] of so many keys as its `kv_lens`.
        options: see `latent_attention`; there is no window.
        paired: whether bfloat16 is multiplied as it is.

    Raises:
        ValueError: sizes are no multiples of 16.
    """
    sizes, dtype = LatentSizes(q_latent.shape[2], q_rope.shape[2]), kv_cache.dtype.name
    problem = refusal(sizes, MULTIPLE, dtype)
    if problem is not None:
        raise ValueError(f"latent attention on CPUs {problem}")
    # The kernel counts a token's keys up to its position.
    rows, target = (
        replace(rows, positions=rows.kv_lens - 1),
        latent_attention_target(dtype, paired=paired, is_chosen=True),
    )
    return _read(target, q_latent, q_rope, kv_cache, layer, rows, options, paired=paired)


def _read(
    target: Target,
    q_latent: jax.Array,
    q_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    *,
    paired: bool,
) -> jax.Array:
    """A call that writes nothing, so that XLA need not know about the cache's place."""
    none = jnp.zeros((1, q_latent.shape[2]), kv_cache.dtype), jnp.zeros((1, q_rope.shape[2]), kv_cache.dtype)
    own = replace(options, writes=False)
    arrays = _arguments(q_latent, q_rope, none, kv_cache, layer, batch, own, paired=paired)
    provide(target)
    out: jax.Array = jax.ffi.ffi_call(target.name, jax.ShapeDtypeStruct(q_latent.shape, arrays[0].dtype))(*arrays)
    return out.astype(q_latent.dtype)


def _arguments(
    q_latent: jax.Array,
    q_rope: jax.Array,
    new: tuple[jax.Array, jax.Array],
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    *,
    paired: bool,
) -> tuple[jax.Array, ...]:
    """See `work`."""
    kind, dtype = jnp.bfloat16 if paired else jnp.float32, kv_cache.dtype
    ints = [layer, batch.num_requests, batch.num_tokens, options.window]
    ints += [int(options.sinks is not None), int(options.writes)]
    sinks = () if options.sinks is None else (options.sinks.astype(jnp.float32),)
    return (
        q_latent.astype(kind),
        q_rope.astype(kind),
        # In float32 the kernel itself writes only finite values.
        *(each if each.dtype == dtype == jnp.float32 else quantise(each, None, dtype) for each in new),
        kv_cache,
        batch.positions,
        batch.query_start,
        batch.page_table,
        jnp.stack([jnp.int32(each) for each in ints]),
        jnp.concatenate([jnp.asarray([options.scale, 0.0, 1.0], jnp.float32), *sinks]),
    )


def indexed_by(*, paired: bool) -> IndexedLatentAttention:
    """`call_indexed` with one of the kernels: XLA scores and chooses keys, and the kernel attends to them."""

    def attend_to_all(
        q_latent: jax.Array,
        q_rope: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: LatentOptions,
    ) -> jax.Array:
        target = latent_attention_target(kv_cache.dtype.name, paired=paired)
        return _read(target, q_latent, q_rope, kv_cache, layer, batch, options, paired=paired)

    def attend_to_chosen(
        q_latent: jax.Array,
        q_rope: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: LatentOptions,
        chosen: ChosenKeys,
    ) -> jax.Array:
        return attend_to_places(q_latent, q_rope, kv_cache, layer, chosen.rows(batch), options, paired=paired)

    return indexed_with(attend_to_all, attend_to_chosen)


BACKEND = LatentBackend(
    cpu_latent_attention, supports=frozenset(get_args(LatentFeature)), call_indexed=indexed_by(paired=False)
)
