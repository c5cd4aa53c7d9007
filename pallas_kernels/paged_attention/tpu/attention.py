"""Ragged paged attention on TPUs: packs the arguments for the two kernels, and calls them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.backend import Backend
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.tpu.blocks import choose_blocks
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks, Options, Scalars, Seen, limit_slots
from jaxllm.pallas_kernels.paged_attention.tpu.decode import decode
from jaxllm.pallas_kernels.paged_attention.tpu.layout import (
    Dims,
    pack_kv,
    pack_kv_words,
    pack_q,
    packed_rows,
    tpu_cache_shape,
    unpack_q,
    words_of,
)
from jaxllm.pallas_kernels.paged_attention.tpu.prefill import prefill
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, quantise
from jaxllm.pallas_kernels.short_rows import MOST_SHORT
from jaxllm.pallas_kernels.tpu_common.batch import TpuBatch, tpu_prepare
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E
from jaxllm.pallas_kernels.tpu_common.target import target


def tpu_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    *,
    decode_blocks: Blocks | None = None,
    prefill_blocks: Blocks | None = None,
    interpret: pltpu.InterpretParams | bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`; the cache is in the shape of `tpu_cache_shape`.

    Raises:
        NotImplementedError: a scale for each token and head.
    """
    if options.scale_bytes:
        raise NotImplementedError("scales per token and head do not fit into rows of 128 lanes")
    shared = SharedRows(k.shape[1], q.shape[1] // k.shape[1], q.shape[2])
    dims = Dims.of(shared, kv_cache.shape[4], q.dtype.name, kv_cache.dtype.name)
    in_words = interpret is False and dims.kv_packing > 1
    if options.writes:
        pack = pack_kv_words if in_words else pack_kv
        stored = quantise(k, options.k_scale, kv_cache.dtype), quantise(v, options.v_scale, kv_cache.dtype)
        new = pack(shared.join(stored[0]), shared.join(stored[1]), dims)
    else:
        # The kernels take the step's keys from an array, and write what is there already.
        new = packed_rows(kv_cache, layer, batch)
        new = words_of(new) if in_words else new
    k_scale, v_scale = (1.0 if x is None else jnp.asarray(x, jnp.float32) for x in (options.k_scale, options.v_scale))
    window, soft_cap = options.window, options.soft_cap
    factor = options.scale * k_scale
    factor = factor * LOG2_E if soft_cap is None else factor / soft_cap
    factors = [jnp.asarray(x, jnp.float32).reshape(()) for x in (factor, v_scale)]
    prepared = tpu_prepare(batch)
    scalars = Scalars(
        jnp.asarray(layer, jnp.int32).reshape(1),
        jnp.asarray(0 if window is None else window, jnp.int32).reshape(1),
        prepared.counts,
        jnp.stack(factors),
        batch.kv_lens,
        batch.query_start,
        prepared.order,
    )
    rows = pack_q(shared.spread(q), dims)
    if interpret is False:
        # XLA would put it into VMEM, from where a copy is no DMA: the core would do it itself.
        new = pltpu.with_memory_space_constraint(new, pltpu.HBM)
    layers, pages, _, *rest = kv_cache.shape
    cache = kv_cache.reshape(layers, pages, *rest)
    has_window = window is not None and not (isinstance(window, int) and window == 0)
    switches = (
        soft_cap,
        has_window,
        options.sinks is not None,
        options.alibi_slopes is not None,
        interpret is not False,
        options.checks,
    )
    chip = target()
    blocks = decode_blocks or choose_blocks("decode", dims, q.shape[0], chip)
    short = min(prepared.most_short, q.shape[0])
    kernel = Options(dims, limit_slots(blocks, prepared.table.shape[2]), *switches, short)
    per_head = _per_head(shared, dims, options.alibi_slopes, options.sinks)
    heads = _pad_sublanes(per_head, dims, short)
    rows, cache = decode(scalars, prepared.table, new, heads, rows, cache, kernel, interpret)
    if q.shape[0] > 1:
        blocks = prefill_blocks or choose_blocks("prefill", dims, q.shape[0], chip)
        seen = _seen(prepared)
        kernel = Options(dims, blocks, *switches, has_spans=seen is not None)
        heads = _pad_lanes(per_head, dims)
        rows, cache = prefill(scalars, seen, prepared.table, new, heads, rows, cache, kernel, interpret)
    return shared.own(unpack_q(rows, dims)), cache.reshape(kv_cache.shape)


def _seen(batch: TpuBatch) -> Seen | None:
    """How far tokens see, where some see later ones."""
    if batch.visible_until is None:
        return None
    assert batch.next_seeing is not None
    return Seen(batch.visible_until, batch.next_seeing)


def _per_head(shared: SharedRows, dims: Dims, slopes: jax.Array | None, sinks: jax.Array | None) -> jax.Array | None:
    """Slopes and sinks as float32 [2, K, group rows]; nothing where there are none."""
    if slopes is None and sinks is None:
        return None
    zero = np.zeros(shared.num_kv_heads * shared.group, np.float32)
    both = jnp.stack([jnp.asarray(zero if x is None else x, jnp.float32) for x in (slopes, sinks)])
    both = shared.pad_queries(both, axis=1).reshape(2, dims.num_kv_heads, dims.group)
    return jnp.pad(both, ((0, 0), (0, 0), (0, dims.group_rows - dims.group)))


def _pad_sublanes(per_head: jax.Array | None, dims: Dims, tokens: int) -> jax.Array:
    """[2, K, rows, 128]: a whole number of groups that fills whole tiles, for so many tokens at least."""
    if per_head is None:
        return jnp.zeros((2, 1, 8, LANES), jnp.float32)
    rows = math.lcm(tokens * dims.group_rows, 8)
    both = jnp.tile(per_head, (1, 1, rows // dims.group_rows))
    return jnp.broadcast_to(both[..., None], (*both.shape, LANES))


def _pad_lanes(per_head: jax.Array | None, dims: Dims) -> jax.Array:
    """[2, K, 1, lanes]: a whole number of groups that fills whole tiles."""
    if per_head is None:
        return jnp.zeros((2, 1, 1, LANES), jnp.float32)
    lanes = math.lcm(dims.group_rows, LANES)
    return jnp.tile(per_head, (1, 1, lanes // dims.group_rows))[:, :, None]


BACKEND = Backend(
    tpu_paged_attention,
    tpu_cache_shape,
    lambda batch, heads: tpu_prepare(batch, min(heads.most_short, MOST_SHORT)),
    page_size=lambda shape, head_size: shape[4],
    supports_spans=True,
)
