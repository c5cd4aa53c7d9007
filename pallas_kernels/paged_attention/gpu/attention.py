"""Paged attention for NVIDIA GPUs of the Hopper generation: plan, two launches of the kernel, pieces put together."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Backend, Heads
from jaxllm.pallas_kernels.paged_attention.cache_write import write_kv
from jaxllm.pallas_kernels.paged_attention.gpu.batch import (
    choose_tile,
    gpu_prepare,
    max_splits,
    multiprocessors,
    plans_of,
)
from jaxllm.pallas_kernels.paged_attention.gpu.compute import LOG2E
from jaxllm.pallas_kernels.paged_attention.gpu.kernel import launch
from jaxllm.pallas_kernels.paged_attention.gpu.options import (
    COMPUTE_TYPES,
    ROWS,
    WARPGROUPS,
    KernelOptions,
    is_hopper,
    refusal,
)
from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan
from jaxllm.pallas_kernels.paged_attention.gpu.results import combine_decode, combine_prefill
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import short_rows

SHARED_MEMORY = 227 * 1024
"""Bytes a block may use on Hopper and Blackwell."""


def gpu_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    *,
    interpret: bool = False,
    blocks: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`.

    Queries are multiplied in a 16-bit type, see `COMPUTE_TYPES`. With `interpret` the kernel runs in JAX's interpreter
    of Mosaic GPU, on CPU. `blocks` is the number of persistent blocks, by default one for each multiprocessor.

    Raises:
        NotImplementedError: a type of cache or shapes that the kernel does not take.
    """
    _check(q, kv_cache, options)
    if not interpret:
        _check_device()
    blocks = multiprocessors() if blocks is None else blocks
    if options.writes:
        kv_cache = write_kv(kv_cache, k, v, layer, batch, options)
    layers, pages, page_size, heads, head_size = kv_cache.shape
    tokens, num_heads, _ = q.shape
    group = num_heads // (heads // 2)
    dtype, kv_dtype = COMPUTE_TYPES[str(kv_cache.dtype)], str(kv_cache.dtype)
    largest = float(jnp.finfo(dtype).max)
    grouped = (
        jnp.clip(q, -largest, largest).astype(dtype).reshape(tokens, heads // 2, group, head_size).transpose(1, 0, 2, 3)
    )
    queries = jnp.pad(grouped.reshape(-1, head_size), ((0, WARPGROUPS * ROWS), (0, 0)))
    flat = kv_cache.reshape(layers * pages * page_size, heads * head_size)
    soft_cap, sinks, window = options.soft_cap, options.sinks, options.window
    factor = jnp.float32(options.scale if options.k_scale is None else options.scale * options.k_scale)
    factor = factor * LOG2E if soft_cap is None else factor / soft_cap
    short = short_rows(batch)
    slopes = _row_slopes(options.alibi_slopes, heads // 2, group)

    def run(plan: Plan, *, decode: bool) -> tuple[jax.Array, jax.Array]:
        tile = choose_tile(head_size, kv_dtype, decode=decode)
        kernel = KernelOptions(
            decode=decode,
            layers=layers,
            num_kv_heads=heads // 2,
            group=group,
            head_size=head_size,
            page_size=page_size,
            tile=tile,
            stages=choose_stages(tile, head_size, kv_dtype),
            blocks=blocks,
            windowed=window is not None,
            soft_cap=soft_cap,
            alibi=options.alibi_slopes is not None,
            dtype=dtype,
            kv_dtype=kv_dtype,
            interpret=interpret,
            most_short=short.most,
        )
        out, sums = launch(
            kernel,
            plan.units,
            batch.page_table.reshape(-1),
            jnp.asarray(layer, jnp.int32)[None],
            factor[None],
            queries,
            slopes,
            flat,
        )
        places = (plan.units.shape[0], heads // 2, WARPGROUPS)
        return out.reshape(*places, kernel.out_rows, head_size), sums.reshape(*places, ROWS)

    shape = Heads(num_heads, heads // 2, head_size, kv_dtype, frozenset())
    decodes, others = plans_of(batch, window, shape, blocks)
    parts = max_splits(batch, shape, blocks)
    attended = combine_decode(decodes, batch, short, *run(decodes, decode=True), sinks, group, parts)
    if tokens > 1:
        prefilled = combine_prefill(others, batch, short, *run(others, decode=False), sinks, group)
        is_short = jnp.arange(tokens, dtype=jnp.int32) < short.tokens
        attended = jnp.where(is_short[:, None, None], attended, prefilled)
    if options.v_scale is not None:
        attended = attended * options.v_scale
    return attended.astype(q.dtype), kv_cache


def _check(q: jax.Array, kv_cache: jax.Array, options: AttentionOptions) -> None:
    """Refuse what the kernel cannot do."""
    if options.scale_bytes:
        raise NotImplementedError(
            "paged attention 'gpu' does not support scales per token and head. Choose implementation 'xla'."
        )
    _, _, page_size, heads, head_size = kv_cache.shape
    problem = refusal(
        group=q.shape[1] // (heads // 2), head_size=head_size, page_size=page_size, kv_dtype=str(kv_cache.dtype)
    )
    if problem is not None:
        raise NotImplementedError(f"paged attention 'gpu' does not support {problem}. Choose implementation 'xla'.")


def _check_device() -> None:
    """Refuse a GPU without wgmma. Where none is there, one is compiled for, and the compiler will say."""
    if jax.default_backend() == "gpu":
        device = jax.devices()[0]
        if not is_hopper(device):
            raise NotImplementedError(
                f"paged attention 'gpu' needs compute capability 9 (Hopper); {device.device_kind} has"
                f" {device.compute_capability}. Choose implementation 'xla'."
            )


def _row_slopes(alibi_slopes: jax.Array | None, num_kv_heads: int, group: int) -> jax.Array:
    """The slope of each row of a warpgroup, for each KV head: float32 [K * ROWS], in base 2."""
    if alibi_slopes is None:
        return jnp.float32(0.0)[None]  # Nobody reads it.
    slopes = alibi_slopes.astype(jnp.float32).reshape(num_kv_heads, group) * LOG2E
    return jnp.tile(slopes, (1, -(-ROWS // group)))[:, :ROWS].reshape(-1)


def choose_stages(tile: int, head_size: int, kv_dtype: str) -> int:
    """Tiles of the ring: as many as fit alongside queries and conversions; even, see `KernelOptions.stages`."""
    size = jnp.dtype(kv_dtype).itemsize
    rows = WARPGROUPS * (ROWS + (tile if size == 1 else 0))
    stages = (SHARED_MEMORY - rows * head_size * 2 - 8 * 1024) // (2 * tile * head_size * size)
    return min(stages // 2 * 2, 8)


BACKEND = Backend(gpu_paged_attention, prepare=gpu_prepare)
