"""The programs of an engine that generates: what each is made of, and the one list of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from jaxllm.models.causal_lm import CausalLM, abstract_model
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.numba.zeros import zeros
from jaxllm.runtime.programs.buckets import Bucket, Buckets
from jaxllm.runtime.programs.program import Program, ProgramSet, Shapes, of_leaves
from jaxllm.runtime.resolved import ResolvedConfig
from jaxllm.runtime.sampling.constrained import constrained_layout, make_sample_constrained
from jaxllm.runtime.sampling.listed import listed_layout, make_listed_logprobs
from jaxllm.runtime.sampling.logprobs import Logprobs
from jaxllm.runtime.sampling.rows import SamplingState, set_bias, set_row
from jaxllm.runtime.sampling.sampler import SampledRows
from jaxllm.runtime.sampling.table import UPDATE_SIZE
from jaxllm.runtime.sampling.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.runtime.step import (
    PROMPT_LOGPROB_ROWS,
    DeviceState,
    StepShape,
    copy_pages,
    make_prompt_logprobs,
    make_step,
    set_pages,
)

SAMPLE_ROWS = {"cpu": 32}
"""Rows whose logits are computed at a time. On CPU a product with 32 rows takes less time than two with 16, but those
with 64 would make a step with one prompt slower. Elsewhere reading the output layer twice would take longer."""
OTHER_SAMPLE_ROWS = 256

CHOOSE_ROWS = {"tpu": 64}
"""Rows whose tokens are chosen at a time, elsewhere all of them. The probabilities of 64 rows of 128,256 tokens fit
into the vector memory of a TPU v6e, where a pass takes two thirds of the time."""


def generation_programs(resolved: ResolvedConfig, num_pages: int) -> ProgramSet[DeviceState]:
    """The programs of an engine with so many KV pages."""
    graph, parameters = nnx.split(abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype)))
    buckets = Buckets(resolved.max_num_batched_tokens, resolved.config.scheduler.max_num_seqs, resolved.bucket_growth)
    shape = StepShape(
        table_width=-(-resolved.max_model_len // resolved.page_size),
        page_size=resolved.page_size,
        max_logprobs=resolved.max_logprobs,
        sample_rows=SAMPLE_ROWS.get(resolved.platform, OTHER_SAMPLE_ROWS),
        choose_rows=CHOOSE_ROWS.get(resolved.platform),
        accelerated=resolved.platform == "tpu",
    )
    state = _state(resolved, num_pages, buckets, shape)
    native = resolved.forward.native_matmul
    arrays = _Arrays(graph, parameters, state, shape, resolved.mesh, native, resolved.matmul_precision)
    return ProgramSet(
        step=partial(_step, arrays),
        others={
            "empty_state": _empty_state(arrays),
            "prompt_logprobs": _prompt_logprobs(arrays),
            "listed_logprobs": _listed_logprobs(arrays),
            "sample_constrained": _sample_constrained(arrays),
            "set_row": _set_row(arrays),
            "set_bias": _set_bias(arrays),
            "set_pages": _set_pages(arrays),
            "copy_pages": _copy_pages(arrays),
        },
        buckets=buckets,
        shape=shape,
        parameters=parameters,
        state=state,
        options={"max_logprobs": shape.max_logprobs},
        mesh=resolved.mesh,
        uses_native_kernels=native,
    )


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


@dataclass(frozen=True)
class _Arrays:
    """The model's graph, and the shapes of all that programs take."""

    graph: nnx.GraphDef[CausalLM]
    parameters: Shapes
    state: DeviceState
    shape: StepShape
    mesh: Mesh | None
    uses_native_kernels: bool
    precision: str | None

    def host(self, shape: tuple[int, ...] = (), dtype: Any = np.int32, *axes: str | None) -> jax.ShapeDtypeStruct:
        """An array that comes from the host, whole on every device unless `axes` say otherwise."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(self.mesh, *axes))

    @property
    def whole(self) -> NamedSharding | None:
        """Where results go that the host reads."""
        return sharding(self.mesh)

    def program(self, name: str, function: Callable[..., Any], *others: Shapes, **options: Any) -> Program:
        """A program of the parameters and `others`."""
        return of_leaves(name, function, self.parameters, *others, precision=self.precision, mesh=self.mesh, **options)


def _step(arrays: _Arrays, bucket: Bucket) -> Program:
    return arrays.program(
        f"step_{bucket.tokens}_tokens",
        make_step(arrays.graph, arrays.shape, bucket),
        arrays.state,
        arrays.host((arrays.shape.layout(bucket).size,)),
        result=(SampledRows(_LEAF, _LOGPROBS), arrays.state),
        donated=(1,),
        out_shardings=(arrays.whole, _shardings(arrays.state)),
    )


def _empty_state(arrays: _Arrays) -> Program:
    def empty_state() -> DeviceState:
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), arrays.state)
        cache = arrays.state.kv_cache
        return replace(state, kv_cache=zeros(cache.shape, cache.dtype)) if arrays.uses_native_kernels else state

    return Program(empty_state, (), arrays.state, out_shardings=_shardings(arrays.state), mesh=arrays.mesh)


def _prompt_logprobs(arrays: _Arrays) -> Program:
    function = make_prompt_logprobs(arrays.graph, arrays.shape.max_logprobs)
    others = (arrays.state.hidden, arrays.host(), arrays.host((PROMPT_LOGPROB_ROWS,)))
    return arrays.program("prompt_logprobs", function, *others, result=_LOGPROBS, out_shardings=arrays.whole)


def _listed_logprobs(arrays: _Arrays) -> Program:
    layout = listed_layout(arrays.state.last_tokens.shape[0])
    function = make_listed_logprobs(arrays.graph, layout)
    others = (arrays.state.hidden, arrays.host((layout.size,)))
    return arrays.program("listed_logprobs", function, *others, result=_LEAF, out_shardings=arrays.whole)


def _sample_constrained(arrays: _Arrays) -> Program:
    state = arrays.state
    layout = constrained_layout(state.sampling)
    return arrays.program(
        "sample_constrained",
        make_sample_constrained(arrays.graph, arrays.shape, layout),
        state.hidden,
        state.sampling,
        state.last_tokens,
        arrays.host((layout.size,)),
        result=(SampledRows(_LEAF, _LOGPROBS), state.sampling, _LEAF),
        donated=(2, 3),
        out_shardings=(arrays.whole, _shardings(state.sampling), _shardings(state.last_tokens)),
    )


def _set_row(arrays: _Arrays) -> Program:
    state = arrays.state.sampling
    rows = [arrays.host(state.bias.shape[1:], dtype, "vocab") for dtype in (np.int32, np.bool_, np.float32)]
    return Program(
        set_row, (state, arrays.host(), *rows), state, donated=(0,), out_shardings=_shardings(state), mesh=arrays.mesh
    )


def _set_bias(arrays: _Arrays) -> Program:
    state = arrays.state.sampling
    entries = [arrays.host((UPDATE_SIZE,), dtype) for dtype in (np.int32, np.int32, np.float32)]
    # Each device changes its part: left to itself, the compiler would gather the whole array for it.
    function = over_vocabulary(set_bias, arrays.mesh, (SPLIT, SAME, SAME, SAME), SPLIT)
    return Program(function, (state, *entries), state, donated=(0,), out_shardings=_shardings(state), mesh=arrays.mesh)


def _set_pages(arrays: _Arrays) -> Program:
    table, rows = arrays.state.page_table, arrays.shape.rows_at_once
    arguments = (table, arrays.host((rows,)), arrays.host((rows, table.shape[1])))
    return Program(set_pages, arguments, _LEAF, donated=(0,), out_shardings=_shardings(table), mesh=arrays.mesh)


def _copy_pages(arrays: _Arrays) -> Program:
    cache = arrays.state.kv_cache
    # In one step, each slot can get a copy of one page.
    arguments = (cache, arrays.host((2, arrays.state.last_tokens.shape[0])), arrays.host())
    return Program(copy_pages, arguments, _LEAF, donated=(0,), out_shardings=_shardings(cache), mesh=arrays.mesh)


def _shardings(state: Any) -> Any:
    """Where the leaves of a device state stay."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


_LEAF: Any = 0
_LOGPROBS = Logprobs(_LEAF, _LEAF, _LEAF, _LEAF)
