"""The programs of an engine that generates: what each is made of, and the one list of them."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxllm.executor.compile.arrays import (
    LEAF,
    Arrays,
    make_copies,
    make_copy_pages,
    make_empty_state,
    make_set_pages,
    shardings,
)
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.data_shards import map_over_data_shards
from jaxllm.executor.compile.program import Program, ProgramSet
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.sampler.constrained import constrained_layout, make_sample_constrained
from jaxllm.executor.sampler.listed import listed_layout, make_listed_logprobs
from jaxllm.executor.sampler.logprobs import Logprobs
from jaxllm.executor.sampler.logprobs_mode import is_normalized
from jaxllm.executor.sampler.rows import SamplingState, set_bias, set_row
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.sampler.table import UPDATE_SIZE
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.executor.step_program import (
    PROMPT_LOGPROB_ROWS,
    DeviceState,
    StageState,
    StepShape,
    embeddings_at_once,
    make_prompt_logprobs,
    make_step,
    set_embeddings,
)
from jaxllm.models.cache import make_cache
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.sharding import sharding

SAMPLE_ROWS = {"cpu": 32}
"""Rows whose logits are computed at a time. On CPU a product with 32 rows takes less time than two with 16, but those
with 64 would make a step with one prompt slower. Elsewhere reading the output layer twice would take longer."""
OTHER_SAMPLE_ROWS = 256


def generation_programs(resolved: ResolvedConfig, num_pages: int) -> ProgramSet[Any]:
    """The programs of an engine with so many KV pages, or of one of its stages.

    Their state is a `DeviceState`, or a `StageState` where the stage is not the last.
    """
    graph, parameters = nnx.split(abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype)))
    buckets = Buckets(resolved.max_num_batched_tokens, resolved.max_num_seqs, resolved.bucket_growth)
    shape = StepShape(
        table_width=-(-resolved.max_model_len // resolved.page_size),
        page_size=resolved.page_size,
        max_logprobs=resolved.max_logprobs,
        sample_rows=SAMPLE_ROWS.get(resolved.platform, OTHER_SAMPLE_ROWS),
        sampling=resolved.backend("sampling"),
        logprobs_mode=resolved.config.output.logprobs_mode,
        num_tables=resolved.cache_plan.num_tables,
        shards=resolved.data_shards,
        takes_embeddings=resolved.config.model.enable_prompt_embeds,
    )
    stage, native = resolved.stage, resolved.forward.native_matmul
    gives_hidden = stage is not None and not stage.is_last
    state: Any = (_stage_state if gives_hidden else _state)(resolved, num_pages, buckets, shape)
    arrays = Arrays(graph, parameters, state, shape, resolved.mesh, native, resolved.matmul_precision)
    if stage is not None:
        # Most engines have none: starts are faster without the import.
        from jaxllm.executor.compile.stages import Handover, stage_programs

        handover = Handover(resolved.mesh, resolved.model.hidden_size, jnp.dtype(resolved.dtype))
        if gives_hidden:
            return stage_programs(arrays, buckets, handover, stage)
        received = handover.array
    else:
        received = None
    processed: dict[str, Program] = {}
    processors: dict[str, Any] = {}
    if resolved.processors:
        # Most engines have none: starts are faster without the import.
        from jaxllm.executor.compile.processed import processed_programs

        processed, names = processed_programs(arrays, resolved)
        processors = {"logits_processors": names}
    return ProgramSet(
        step=partial(_step, arrays, received),
        others={
            "empty_state": make_empty_state(arrays),
            "prompt_logprobs": _prompt_logprobs(arrays),
            "listed_logprobs": _listed_logprobs(arrays),
            "sample_constrained": _sample_constrained(arrays),
            "set_row": _set_row(arrays),
            "set_bias": _set_bias(arrays),
            "set_pages": make_set_pages(arrays),
            "copy_pages": make_copy_pages(arrays),
            **({"copy_states": _copy_states(arrays)} if state.kv_cache.states else {}),
            **({"set_embeddings": _set_embeddings(arrays)} if shape.takes_embeddings else {}),
            **processed,
        },
        buckets=buckets,
        shape=shape,
        parameters=parameters,
        state=state,
        options={"max_logprobs": shape.max_logprobs} | ({} if stage is None else {"stage": asdict(stage)}) | processors,
        mesh=resolved.mesh,
        uses_native_kernels=native,
    )


def _state(resolved: ResolvedConfig, pages: int, buckets: Buckets, shape: StepShape) -> DeviceState:
    """Shapes of the device state of all data shards, which have `pages` each.

    The cache is split along its heads, what is kept per token along the vocabulary.
    """
    of_layers = _stage_state(resolved, pages, buckets, shape)
    array, shards, dtype = partial(_array, resolved.mesh), shape.shards, jnp.dtype(resolved.dtype)
    slots = shards * resolved.max_num_seqs
    per_token = (slots, resolved.vocab_size)
    return DeviceState(
        kv_cache=of_layers.kv_cache,
        page_table=of_layers.page_table,
        sampling=SamplingState(
            array(per_token, jnp.int32, "shards", "vocab"), array(per_token, jnp.float32, "shards", "vocab")
        ),
        last_tokens=array((slots,), jnp.int32, "shards"),
        hidden=array((shards * buckets.largest.tokens, resolved.model.hidden_size), dtype, "shards"),
    )


def _stage_state(resolved: ResolvedConfig, pages: int, _: Buckets, shape: StepShape) -> StageState:
    """What of it belongs to layers."""
    shards, array = shape.shards, partial(_array, resolved.mesh)
    return StageState(
        kv_cache=make_cache(
            resolved.cache_plan,
            resolved.cache.array(shards * pages),
            resolved.num_state_slots,
            jnp.dtype(resolved.dtype),
            array,
            axes=resolved.cache.axes,
            page_dtype=resolved.cache.dtype,
        ),
        page_table=array((shards * resolved.max_num_seqs, shape.num_tables * shape.table_width), jnp.int32, "shards"),
    )


def _array(mesh: Mesh | None, shape: tuple[int, ...], dtype: Any, *axes: str | None) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(mesh, *axes))


def _step(
    arrays: Arrays[DeviceState], received: Callable[[Bucket], jax.ShapeDtypeStruct] | None, bucket: Bucket
) -> Program:
    program = arrays.program(
        f"step_{bucket.tokens}_tokens",
        make_step(arrays.graph, arrays.shape, bucket),
        arrays.state,
        arrays.of_shards(arrays.shape.layout(bucket).size),
        *(() if received is None else (received(bucket),)),
        result=(SampledRows(LEAF, _LOGPROBS), arrays.state),
        donated=(1,),
        out_shardings=(arrays.by_shard, shardings(arrays.state)),
    )
    return map_over_data_shards(program)


def _prompt_logprobs(arrays: Arrays[DeviceState]) -> Program:
    function = make_prompt_logprobs(
        arrays.graph, arrays.shape.max_logprobs, normalized=is_normalized(arrays.shape.logprobs_mode)
    )
    others = (arrays.state.hidden, arrays.host(), arrays.host((PROMPT_LOGPROB_ROWS,)))
    return arrays.program("prompt_logprobs", function, *others, result=_LOGPROBS, out_shardings=arrays.whole)


def _listed_logprobs(arrays: Arrays[DeviceState]) -> Program:
    layout = listed_layout(arrays.state.last_tokens.shape[0])
    function = make_listed_logprobs(arrays.graph, layout, normalized=is_normalized(arrays.shape.logprobs_mode))
    others = (arrays.state.hidden, arrays.host((layout.size,)))
    return arrays.program("listed_logprobs", function, *others, result=LEAF, out_shardings=arrays.whole)


def _sample_constrained(arrays: Arrays[DeviceState]) -> Program:
    state = arrays.state
    layout = constrained_layout(state.sampling, arrays.shape.shards)
    program = arrays.program(
        "sample_constrained",
        make_sample_constrained(arrays.graph, arrays.shape, layout),
        state.hidden,
        state.sampling,
        state.last_tokens,
        arrays.of_shards(layout.size),
        result=(SampledRows(LEAF, _LOGPROBS), state.sampling, LEAF),
        donated=(2, 3),
        out_shardings=(arrays.by_shard, shardings(state.sampling), shardings(state.last_tokens)),
    )
    return map_over_data_shards(program)


def _set_row(arrays: Arrays[DeviceState]) -> Program:
    state = arrays.state.sampling
    rows = [arrays.host(state.bias.shape[1:], dtype, "vocab") for dtype in (np.int32, np.bool_, np.float32)]
    arguments = (state, arrays.host(), *rows)
    program = Program(set_row, arguments, state, donated=(0,), out_shardings=shardings(state), mesh=arrays.mesh)
    return map_over_data_shards(program)


def _set_bias(arrays: Arrays[DeviceState]) -> Program:
    state = arrays.state.sampling
    entries = [arrays.host((UPDATE_SIZE,), dtype) for dtype in (np.int32, np.int32, np.float32)]
    # Each device changes its part: left to itself, the compiler would gather the whole array for it.
    function = over_vocabulary(set_bias, arrays.mesh, (SPLIT, SAME, SAME, SAME), SPLIT)
    arguments = (state, *entries)
    program = Program(function, arguments, state, donated=(0,), out_shardings=shardings(state), mesh=arrays.mesh)
    return map_over_data_shards(program)


def _set_embeddings(arrays: Arrays[DeviceState]) -> Program:
    hidden = arrays.state.hidden
    rows = embeddings_at_once(hidden.shape[0] // arrays.shape.shards)
    arguments = (hidden, arrays.host((rows,)), arrays.host((rows, hidden.shape[1]), hidden.dtype))
    places = shardings(hidden)
    return map_over_data_shards(
        Program(set_embeddings, arguments, LEAF, donated=(0,), out_shardings=places, mesh=arrays.mesh)
    )


def _copy_states(arrays: Arrays[DeviceState]) -> Program:
    states = arrays.state.kv_cache.states
    # In one step, each slot can be read, or kept in a snapshot.
    return make_copies(arrays, states, arrays.slots)


_LOGPROBS = Logprobs(LEAF, LEAF, LEAF, LEAF)
