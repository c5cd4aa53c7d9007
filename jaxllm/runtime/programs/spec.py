"""The shapes and places of all arrays of an engine: what its executables are compiled from."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.sharding import sharding
from jaxllm.runtime.programs.buckets import Buckets
from jaxllm.runtime.programs.generation import StepSpec
from jaxllm.runtime.resolved import ResolvedConfig
from jaxllm.runtime.sampling.rows import SamplingState
from jaxllm.runtime.step import DeviceState, StepShape

SAMPLE_ROWS = {"cpu": 32}
"""Rows whose logits are computed at a time. On CPU a product with 32 rows takes less time than two with 16, but those
with 64 would make a step with one prompt slower."""
OTHER_SAMPLE_ROWS = 128


def make_spec(resolved: ResolvedConfig, pages: int) -> tuple[StepSpec, Buckets]:
    """What the executables are compiled from, and their shapes."""
    graph, parameters = nnx.split(abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype)))
    buckets = Buckets(resolved.max_num_batched_tokens, resolved.config.scheduler.max_num_seqs, resolved.bucket_growth)
    shape = StepShape(
        table_width=-(-resolved.max_model_len // resolved.page_size),
        page_size=resolved.page_size,
        max_logprobs=resolved.max_logprobs,
        sample_rows=SAMPLE_ROWS.get(resolved.platform, OTHER_SAMPLE_ROWS),
    )
    state = _state(resolved, pages, buckets, shape)
    return StepSpec(graph, parameters, state, shape, resolved.mesh, resolved.forward.native_matmul), buckets


def _state(resolved: ResolvedConfig, pages: int, buckets: Buckets, shape: StepShape) -> DeviceState:
    """Shapes of the device state. The cache is split along its heads, what is kept per token along the vocabulary."""

    def array(shape: tuple[int, ...], dtype: Any, *axes: str | None) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(resolved.mesh, *axes))

    slots, dtype = resolved.config.scheduler.max_num_seqs, jnp.dtype(resolved.dtype)
    per_token = (slots, resolved.vocab_size)
    return DeviceState(
        kv_cache=array(resolved.cache.array(pages), dtype, None, None, None, "kv_heads"),
        sampling=SamplingState(
            array(per_token, jnp.int32, None, "vocab"), array(per_token, jnp.float32, None, "vocab")
        ),
        page_table=array((slots, shape.table_width), jnp.int32),
        last_tokens=array((slots,), jnp.int32),
        hidden=array((buckets.largest.tokens, resolved.model.hidden_size), dtype),
    )
