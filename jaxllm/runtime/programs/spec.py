"""The shapes and places of all arrays of an engine: what its executables are compiled from."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.sharding import sharding
from jaxllm.runtime.programs.buckets import Buckets
from jaxllm.runtime.programs.generation import StepSpec
from jaxllm.runtime.resolved import Plan
from jaxllm.runtime.sampling.rows import SamplingState
from jaxllm.runtime.step import DeviceState, StepShape

SAMPLE_ROWS = {"cpu": 32}
"""Rows whose logits are computed at a time. On CPU a product with 32 rows takes less time than two with 16, but those
with 64 would make a step with one prompt slower."""
OTHER_SAMPLE_ROWS = 128


def make_spec(plan: Plan, pages: int) -> tuple[StepSpec, Buckets]:
    """What the executables are compiled from, and their shapes."""
    graph, parameters = nnx.split(abstract_model(plan.model, plan.forward, jnp.dtype(plan.dtype)))
    buckets = Buckets(plan.max_num_batched_tokens, plan.config.scheduler.max_num_seqs, plan.bucket_growth)
    shape = StepShape(
        table_width=-(-plan.max_model_len // plan.page_size),
        page_size=plan.page_size,
        max_logprobs=plan.max_logprobs,
        sample_rows=SAMPLE_ROWS.get(plan.platform, OTHER_SAMPLE_ROWS),
    )
    state = _state(plan, pages, buckets, shape)
    return StepSpec(graph, parameters, state, shape, plan.mesh, plan.forward.native_matmul), buckets


def _state(plan: Plan, pages: int, buckets: Buckets, shape: StepShape) -> DeviceState:
    """Shapes of the device state. The cache is split along its heads, what is kept per token along the vocabulary."""

    def array(shape: tuple[int, ...], dtype: Any, *axes: str | None) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(plan.mesh, *axes))

    slots, dtype = plan.config.scheduler.max_num_seqs, jnp.dtype(plan.dtype)
    per_token = (slots, plan.vocab_size)
    return DeviceState(
        kv_cache=array(plan.cache.array(pages), dtype, None, None, None, "kv_heads"),
        sampling=SamplingState(
            array(per_token, jnp.int32, None, "vocab"), array(per_token, jnp.float32, None, "vocab")
        ),
        page_table=array((slots, shape.table_width), jnp.int32),
        last_tokens=array((slots,), jnp.int32),
        hidden=array((buckets.largest.tokens, plan.model.hidden_size), dtype),
    )
