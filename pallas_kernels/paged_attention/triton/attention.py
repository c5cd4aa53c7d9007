"""Paged attention through Triton: the plan of `gpu`, a launch for decodes and one for prompts.

A layer has four launches: writing keys and values, the decodes, joining parts of their contexts, and the prompts.
"""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Backend, Heads
from jaxllm.pallas_kernels.paged_attention.cache_write import write_kv
from jaxllm.pallas_kernels.paged_attention.gpu.batch import (
    DECODE_ITEMS,
    GpuBatch,
    max_splits,
    multiprocessors,
    prepared_plans,
    with_plans,
)
from jaxllm.pallas_kernels.paged_attention.gpu.compute import LOG2E
from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan, plan_decode, plan_prefill
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.triton.kernel import attend_decodes, attend_prompts, join_decodes
from jaxllm.pallas_kernels.paged_attention.triton.options import (
    KernelOptions,
    choose_tile,
    problem_of,
    refusal,
    tokens_of_unit,
)
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import ShortRows, short_rows


def triton_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. With `interpret` the kernel runs in Pallas's interpreter, on CPU.

    Raises:
        NotImplementedError: a type of cache or shapes that the kernel does not take.
    """
    _check(q, kv_cache, options, interpret=interpret)
    if options.writes:
        kv_cache = write_kv(kv_cache, k, v, layer, batch, options)
    layers, pages, page_size, heads, head_size = kv_cache.shape
    tokens, num_heads, _ = q.shape
    group, kv_dtype = num_heads // (heads // 2), str(kv_cache.dtype)
    factors = (options.scale, options.k_scale), (1.0, options.v_scale)
    scale, value_factor = (jnp.float32(a if b is None else a * b) for a, b in factors)
    scale = scale * LOG2E if options.soft_cap is None else scale / options.soft_cap
    shared = {
        "page_table": batch.page_table.reshape(-1),
        "query_start": batch.query_start,
        "width": jnp.full(1, batch.page_table.shape[1], jnp.int32),
        "layer_start": (jnp.asarray(layer, jnp.int32) * (pages * page_size))[None],
        "factors": jnp.stack([scale, value_factor]),
        "q": q,
        "kv": kv_cache.reshape(layers * pages * page_size, heads, head_size),
    }
    if options.alibi_slopes is not None:
        shared["slopes"] = options.alibi_slopes.astype(jnp.float32) * LOG2E

    short = short_rows(batch)

    def static(*, decode: bool) -> KernelOptions:
        return KernelOptions(
            decode=decode,
            group=group,
            head_size=head_size,
            page_size=page_size,
            tile=choose_tile(head_size, kv_dtype),
            windowed=options.window is not None,
            soft_cap=options.soft_cap,
            dtype=kv_dtype if q.dtype == kv_cache.dtype else "float32",
            most_short=short.most,
        )

    shape = Heads(num_heads, heads // 2, head_size, kv_dtype, frozenset())
    decodes, prompts = prepared_plans(batch, options.window) or _make_plans(batch, options.window, short, shape)
    parts = attend_decodes(static(decode=True), shared | {"units": decodes.units.reshape(-1)}, interpret=interpret)
    sinks = None if options.sinks is None else options.sinks.astype(jnp.float32) * LOG2E
    result = jax.ShapeDtypeStruct(q.shape, q.dtype)
    joined = {"counts": decodes.counts} | ({} if sinks is None else {"sinks": sinks})
    if short.most > 1:
        joined |= {"rows": batch.token_rows, "query_start": batch.query_start, "short": short.tokens[None]}
    attended = join_decodes(parts, joined, result, group, interpret=interpret)
    if tokens > 1:
        own = {"units": prompts.units.reshape(-1)} | ({} if sinks is None else {"sinks": sinks})
        own |= {} if batch.visible_until is None else {"until": batch.visible_until}
        attended = attend_prompts(static(decode=False), shared | own, attended, interpret=interpret)
    return attended, kv_cache


def triton_prepare(batch: RaggedBatch, heads: Heads) -> GpuBatch:
    """`batch` with the plans for all windows of `heads`."""
    return with_plans(batch, heads, lambda window, short: _make_plans(batch, window, short, heads))


def _make_plans(
    batch: RaggedBatch, window: int | jax.Array | None, short: ShortRows, heads: Heads
) -> tuple[Plan, Plan]:
    blocks, tile = multiprocessors(), choose_tile(heads.head_size, heads.kv_dtype)
    decode = plan_decode(
        batch,
        window,
        short,
        tile=tile,
        splits=max_splits(batch, heads, blocks),
        items=DECODE_ITEMS * blocks,
        num_kv_heads=heads.num_kv_heads,
    )
    tokens = tokens_of_unit(heads.num_heads // heads.num_kv_heads)
    return decode, plan_prefill(batch, window, short, tile=tile, tokens=tokens)


def _check(q: jax.Array, kv_cache: jax.Array, options: AttentionOptions, *, interpret: bool) -> None:
    """Refuse what the kernel, or the GPU that is here, cannot do. Where none is here, one is compiled for."""
    problem = refusal(head_size=q.shape[2], kv_dtype=str(kv_cache.dtype))
    if options.scale_bytes:
        problem = "scales per token and head"
    if problem is not None:
        raise NotImplementedError(f"paged attention 'triton' does not support {problem}. Choose implementation 'xla'.")
    if not interpret and jax.default_backend() == "gpu":
        problem = problem_of(jax.devices()[0])
        if problem is not None:
            raise NotImplementedError(f"paged attention 'triton' {problem}. Choose implementation 'xla'.")


BACKEND = Backend(triton_paged_attention, prepare=triton_prepare, supports_spans=True)
