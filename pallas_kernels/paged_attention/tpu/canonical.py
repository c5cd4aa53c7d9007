"""A case of paged attention with the TPU kernel, from and to the canonical cache."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.tpu.attention import tpu_paged_attention
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims, from_rows, to_rows


def attend_on_tpu(inputs: Inputs, *, checks: bool = False) -> tuple[jax.Array, jax.Array]:
    """The result and the canonical cache; with `checks` of bounds and semaphores."""
    if inputs.case.scale_bytes:
        raise NotImplementedError("scales per token and head")
    arrays = inputs.q, inputs.k, inputs.v, from_canonical(inputs.kv_cache, inputs.case)
    options = replace(inputs.options, checks=checks)
    out, cache = tpu_paged_attention(*arrays, jnp.int32(LAYER), inputs.prepared("tpu"), options)
    return out, to_canonical(cache, inputs.case)


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
