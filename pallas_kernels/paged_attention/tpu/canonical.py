"""A case of paged attention with the TPU kernel, from and to the canonical cache."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.cases import Inputs
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.pallas_kernels.paged_attention.tpu.attention import tpu_paged_attention
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims, from_canonical, to_canonical


def attend_on_tpu(inputs: Inputs, *, checks: bool = False) -> tuple[jax.Array, jax.Array]:
    """The result and the canonical cache; with `checks` of bounds and semaphores."""
    case = inputs.case
    group = case.num_heads // case.num_kv_heads
    dims = Dims(case.num_kv_heads, group, case.head_size, case.page_size, case.dtype, case.cache_dtype.name)
    arrays = inputs.q, inputs.k, inputs.v, from_canonical(inputs.kv_cache, dims)
    options = replace(inputs.options, checks=checks)
    out, cache = tpu_paged_attention(*arrays, jnp.int32(LAYER), inputs.batch, options)
    return out, to_canonical(cache, dims)
