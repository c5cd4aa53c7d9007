"""Ragged paged attention on TPUs: packs the arguments for the two kernels, and calls them."""

import math
from dataclasses import dataclass

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
from jaxllm.pallas_kernels.paged_attention.tpu.rotate_and_pack import rotate_and_pack
from jaxllm.pallas_kernels.paged_attention.tpu.unpack import unpack
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, quantise
from jaxllm.pallas_kernels.short_rows import MOST_SHORT
from jaxllm.pallas_kernels.tpu_common.batch import TpuBatch, tpu_prepare
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E
from jaxllm.pallas_kernels.tpu_common.target import target

MANY_TOKENS = 512
"""In smaller steps XLA unpacks results as fast as a kernel does."""


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
    how = _Execution(decode_blocks, prefill_blocks, interpret)
    in_words = how.takes_words(dims)
    if options.writes:
        pack = pack_kv_words if in_words else pack_kv
        stored = quantise(k, options.k_scale, kv_cache.dtype), quantise(v, options.v_scale, kv_cache.dtype)
        new = pack(shared.join(stored[0]), shared.join(stored[1]), dims)
    else:
        # The kernels take the step's keys from an array, and write what is there already.
        new = packed_rows(kv_cache, layer, batch)
        new = words_of(new) if in_words else new
    packed = _Packed(shared, dims, pack_q(shared.spread(q), dims), new)
    rows, kv_cache = _attend(packed, kv_cache, layer, batch, options, how)
    return shared.own(unpack_q(rows, dims)), kv_cache


def tpu_merged_attention(
    qkv: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    *,
    decode_blocks: Blocks | None = None,
    prefill_blocks: Blocks | None = None,
    interpret: pltpu.InterpretParams | bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `MergedAttention`: `tpu_paged_attention` of what a product makes, where `supports_merged` says so.

    Args:
        qkv: float32 or bfloat16 [T, (N + 2 K) * 128]: the query heads of a token, then its keys, then its values.
        rotation: cosine and sine, float32 [T, 64].
        kv_cache: of float32 or bfloat16, in the shape of `tpu_cache_shape`.
        layer, batch, options: see `paged_attention`; no scales.
        decode_blocks, prefill_blocks, interpret: for tests and tuning.
    """
    size, kv_heads = 2 * rotation[0].shape[1], kv_cache.shape[3] * kv_cache.shape[5] // 2
    assert supports_merged(size, qkv.dtype.name, kv_cache.dtype.name, options.scale_bytes)
    assert options.writes
    assert options.k_scale is options.v_scale is None
    shared = SharedRows(kv_heads, qkv.shape[1] // size // kv_heads - 2, size)
    dims = Dims.of(shared, kv_cache.shape[4], qkv.dtype.name, kv_cache.dtype.name)
    how = _Execution(decode_blocks, prefill_blocks, interpret)
    # The name in profiles and in compiled programs.
    with jax.named_scope("paged_attention"):
        in_words, norms = how.takes_words(dims), options.head_norms
        arrays = rotate_and_pack(qkv, rotation, dims, in_words=in_words, norms=norms, interpret=interpret)
        rows, kv_cache = _attend(_Packed(shared, dims, *arrays), kv_cache, layer, batch, options, how)
        if len(qkv) >= MANY_TOKENS and dims.q_packing == 2:
            return unpack(rows, dims, interpret=interpret), kv_cache
        return unpack_q(rows, dims).reshape(len(qkv), -1), kv_cache


def supports_merged(head_size: int, dtype: str, stored: str, scale_bytes: int) -> bool:
    """See `Backend.supports_merged`: a head is one row of lanes, and two numbers at most share a word."""
    wide = ("float32", "bfloat16")
    return head_size == LANES and dtype in wide and stored in wide and scale_bytes == 0


@dataclass(frozen=True)
class _Packed:
    """Queries as `pack_q` makes them, and keys and values as `pack_kv` or `pack_kv_words` does."""

    shared: SharedRows
    dims: Dims
    rows: jax.Array
    new: jax.Array


@dataclass(frozen=True)
class _Execution:
    """How the kernels run: their blocks, None for those of the chip, and whether they are interpreted."""

    decode_blocks: Blocks | None
    prefill_blocks: Blocks | None
    interpret: pltpu.InterpretParams | bool

    def takes_words(self, dims: Dims) -> bool:
        """Whether the kernels take new keys and values as words, see `pack_kv_words`."""
        return self.interpret is False and dims.kv_packing > 1


def _attend(
    packed: _Packed,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    how: _Execution,
) -> tuple[jax.Array, jax.Array]:
    """Results in place of the queries, and the cache with the new keys and values."""
    shared, dims, rows, new, interpret = packed.shared, packed.dims, packed.rows, packed.new, how.interpret
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
    chip, tokens = target(), len(rows)
    blocks = how.decode_blocks or choose_blocks("decode", dims, tokens, chip)
    short = min(prepared.most_short, tokens)
    kernel = Options(dims, limit_slots(blocks, prepared.table.shape[2]), *switches, short)
    per_head = _per_head(shared, dims, options.alibi_slopes, options.sinks)
    heads = _pad_sublanes(per_head, dims, short)
    rows, cache = decode(scalars, prepared.table, new, heads, rows, cache, kernel, interpret)
    if tokens > 1:
        blocks = how.prefill_blocks or choose_blocks("prefill", dims, tokens, chip)
        seen = _seen(prepared)
        kernel = Options(dims, blocks, *switches, has_spans=seen is not None)
        heads = _pad_lanes(per_head, dims)
        rows, cache = prefill(scalars, seen, prepared.table, new, heads, rows, cache, kernel, interpret)
    return rows, cache.reshape(kv_cache.shape)


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
        return jnp.zeros((2, 1, 8, LANES), jnp.float32)
    lanes = math.lcm(dims.group_rows, LANES)
    return jnp.tile(per_head, (1, 1, lanes // dims.group_rows))[:, :, None]


BACKEND = Backend(
    tpu_paged_attention,
    tpu_cache_shape,
    lambda batch, heads: tpu_prepare(batch, min(heads.most_short, MOST_SHORT)),
    merged=tpu_merged_attention,
    supports_merged=supports_merged,
    merges_norms=True,
    page_size=lambda shape, head_size: shape[4],
    supports_spans=True,
)
