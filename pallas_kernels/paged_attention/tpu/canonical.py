"""A case of paged attention with the TPU kernel, from and to the canonical cache."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.tpu.attention import supports_merged, tpu_paged_attention
from jaxllm.pallas_kernels.paged_attention.tpu.layout import (
    Dims,
    from_rows,
    pack_kv,
    pack_kv_words,
    pack_q,
    to_rows,
)
from jaxllm.pallas_kernels.paged_attention.tpu.rotate_and_pack import rotate_and_pack
from jaxllm.pallas_kernels.ragged_batch import quantise
from jaxllm.pallas_kernels.tpu_common.constants import LANES


def attend_on_tpu(inputs: Inputs, *, checks: bool = False) -> tuple[jax.Array, jax.Array]:
    """The result and the canonical cache; with `checks` of bounds and semaphores.

    All of the result is NaN where `rotate_and_pack`, which models without norms of heads use, is not right.
    """
    if inputs.case.scale_bytes:
        raise NotImplementedError("scales per token and head")
    arrays = inputs.q, inputs.k, inputs.v, from_canonical(inputs.kv_cache, inputs.case)
    options = replace(inputs.options, checks=checks)
    out, cache = tpu_paged_attention(*arrays, jnp.int32(LAYER), inputs.prepared("tpu"), options)
    if supports_merged(out.shape[2], out.dtype.name, cache.dtype.name, 0):
        out = jnp.where(packs_alike(inputs), out, jnp.nan)
    return out, to_canonical(cache, inputs.case)


def packs_alike(inputs: Inputs, interpret: pltpu.InterpretParams | bool = False) -> jax.Array:
    """Whether `rotate_and_pack` makes what XLA does, bool [], of queries and keys that a quarter of a turn rotates."""
    tokens, dims, dtype = len(inputs.q), dims_of(inputs.case), inputs.kv_cache.dtype
    pack, in_words = (pack_kv_words, True) if interpret is False and dims.kv_packing > 1 else (pack_kv, False)
    wanted = pack_q(inputs.q, dims), pack(quantise(inputs.k, None, dtype), quantise(inputs.v, None, dtype), dims)

    def turned_back(heads: jax.Array) -> jax.Array:
        first, second = jnp.split(heads, 2, axis=-1)
        return jnp.concatenate([second, -first], axis=-1)

    qkv = jnp.concatenate([turned_back(inputs.q), turned_back(inputs.k), inputs.v], axis=1).reshape(tokens, -1)
    quarter = jnp.zeros((tokens, LANES // 2), jnp.float32), jnp.ones((tokens, LANES // 2), jnp.float32)
    found = rotate_and_pack(qkv, quarter, dims, in_words=in_words, interpret=interpret)
    return jnp.logical_and(*(jnp.array_equal(one, other) for one, other in zip(wanted, found, strict=True)))


def dims_of(case: Case) -> Dims:
    """The kernels' view of a case."""
    return Dims.of(_shared(case), case.page_size, case.dtype, case.cache_dtype.name)


def from_canonical(cache: jax.Array, case: Case) -> jax.Array:
    """[L, P, C, 2K, H] as [L, P, 1, J, C, packing, 128], for tests and tools; a running engine never converts."""
    return to_rows(_shared(case).join_pages(cache), dims_of(case))


def to_canonical(cache: jax.Array, case: Case) -> jax.Array:
    """The inverse of `from_canonical`."""
    return _shared(case).part_pages(from_rows(cache, dims_of(case)))


def _shared(case: Case) -> SharedRows:
    return SharedRows(case.num_kv_heads, case.num_heads // case.num_kv_heads, case.head_size)
