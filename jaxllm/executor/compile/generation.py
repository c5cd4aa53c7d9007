"""The programs of an engine that generates, made from their records for a configuration."""

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from jaxllm.executor.compile.buckets import Buckets
from jaxllm.executor.compile.program import ProgramSet
from jaxllm.executor.compile.program_context import Handover, ProgramContext
from jaxllm.executor.device_state import DeviceState, StageState
from jaxllm.executor.draft_state import DraftState
from jaxllm.executor.program_table import DRAFTING_STEP, PROGRAMS, STAGE_STEP, STEP
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.sampler.rows import SamplingState
from jaxllm.executor.step_inputs import StepShape
from jaxllm.executor.transfer_programs import transfer_sizes
from jaxllm.models.cache import Cache, make_cache
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.layers.adapter_factors import square_shapes
from jaxllm.models.layers.adapter_slots import split_adapters
from jaxllm.models.sharding import sharding

if TYPE_CHECKING:
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors

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
        sees_images=resolved.sees_images,
        hears=resolved.model.has_cross_attention,
        has_grid_positions=resolved.sees_images and resolved.model.has_grid_positions,
        sees_spans=resolved.sees_spans,
        adapters=resolved.adapters,
        max_drafts=resolved.max_drafts,
        drafter=resolved.drafter,
        keeps_states=bool(resolved.cache_plan.states),
    )
    stage = resolved.stage
    of_last = stage is None or stage.is_last
    processors, options = _processors(resolved)
    context: ProgramContext[Any] = ProgramContext(
        graph=graph,
        parameters=parameters,
        state=(_state if of_last else _stage_state)(resolved, num_pages, buckets, shape),
        shape=shape,
        mesh=resolved.mesh,
        uses_native_kernels=resolved.forward.native_matmul,
        precision=resolved.matmul_precision,
        handover=Handover(resolved.mesh, resolved.model.hidden_size, jnp.dtype(resolved.dtype)),
        stage=stage,
        tower=resolved.model.tower if resolved.sees_images else None,
        sound=resolved.model.sound if resolved.sees_images or resolved.model.has_cross_attention else None,
        **_adapters(resolved),
        plain_steps=() if shape.drafter is None else buckets.of_decodes(resolved.max_num_seqs),
        transfer_sizes=transfer_sizes(resolved),
        processors=processors,
        has_host_processors=processors is not None and len(processors.processors) < len(resolved.processors),
    )
    if context.transfer_sizes:
        options = {**options, "kv_offloading_size": list(context.transfer_sizes)}
    step = STAGE_STEP
    if of_last:
        step = STEP if shape.drafter is None else DRAFTING_STEP
    return ProgramSet(
        step=partial(step.make, context),
        others={
            name: program
            for record in PROGRAMS
            if record.is_in(context)
            for name, program in record.programs(context).items()
        },
        buckets=buckets,
        shape=shape,
        parameters=parameters,
        state=context.state,
        options={"max_logprobs": shape.max_logprobs} | ({} if stage is None else {"stage": asdict(stage)}) | options,
        mesh=resolved.mesh,
        uses_native_kernels=context.uses_native_kernels,
    )


def _adapters(resolved: ResolvedConfig) -> dict[str, Any]:
    """What a context has of adapter slots, if there are any."""
    if resolved.adapters is None:
        return {}
    options = replace(resolved.forward, adapters=resolved.adapters)
    model = abstract_model(resolved.model, options, jnp.dtype(resolved.dtype))
    adapted, arrays = split_adapters(model)
    found = {"adapted": adapted, "adapters": tuple(arrays.values())}
    return found | ({"row_squares": square_shapes(model)} if resolved.adapters.has_vectors else {})


def _processors(resolved: ResolvedConfig) -> "tuple[CompiledProcessors | None, dict[str, Any]]":
    """The logits processors, and what executables depend on: the names of compiled ones and what they compute."""
    if not resolved.processors:
        return None, {}
    # Most engines have none: starts are faster without the import.
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors

    compiled = CompiledProcessors.of(resolved)
    known = [f"{name} {digest}" for name, digest in compiled.digests().items()]
    on_host = ["on the host"] if len(compiled.processors) < len(resolved.processors) else []
    return compiled, {"logits_processors": [*known, *on_host]}


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
        media_pool=of_layers.media_pool,
        drafter_cache=_drafter_cache(resolved, shards * pages, slots),
        drafts=_drafts(resolved, slots),
    )


def media_pool(resolved: ResolvedConfig) -> Any:
    """Shape of the pool of images' rows, or None where the engine, or the stage, takes none."""
    stage = resolved.stage
    if not resolved.sees_images or (stage is not None and not stage.is_first):
        return None
    tower = resolved.model.tower
    size = (1 if tower is None else tower.row_parts) * resolved.model.hidden_size
    return _array(resolved.mesh, (resolved.media_rows, size), jnp.dtype(resolved.dtype))


def _drafter_cache(resolved: ResolvedConfig, pages: int, slots: int) -> Cache | None:
    """What the drafter keeps in so many pages and slots, if there is one."""
    if resolved.drafter is None:
        return None
    array, shape = partial(_array, resolved.mesh), resolved.drafter_cache
    made = () if shape is None else (array(shape.array(pages), jnp.dtype(shape.dtype), *shape.axes),)
    if not resolved.drafter.num_kept:
        return Cache(made)
    hidden = (slots, resolved.drafter.num_kept, resolved.model.hidden_size)
    kept = array(hidden, jnp.dtype(resolved.dtype), "shards"), array((slots,), jnp.int32, "shards")
    return Cache(made, (kept,))


def _drafts(resolved: ResolvedConfig, slots: int) -> DraftState | None:
    """What is known of the drafts of so many slots, if the devices make any."""
    if resolved.drafter is None:
        return None
    array = partial(_array, resolved.mesh)
    return DraftState(array((slots, resolved.max_drafts), jnp.int32, "shards"), array((slots,), jnp.int32, "shards"))


def _stage_state(resolved: ResolvedConfig, pages: int, _: Buckets, shape: StepShape) -> StageState:
    """What of it belongs to layers."""
    shards, array = shape.shards, partial(_array, resolved.mesh)
    return StageState(
        kv_cache=make_cache(
            resolved.cache_plan,
            resolved.cache.array(shards * (pages + resolved.window_pages)),
            resolved.num_state_slots,
            jnp.dtype(resolved.dtype),
            array,
            axes=resolved.cache.axes,
            page_dtype=resolved.cache.dtype,
            drafts=(resolved.max_num_seqs, resolved.max_drafts),
        ),
        page_table=array((shards * resolved.max_num_seqs, shape.num_tables * shape.table_width), jnp.int32, "shards"),
        media_pool=media_pool(resolved),
    )


def _array(mesh: Mesh | None, shape: tuple[int, ...], dtype: Any, *axes: str | None) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(mesh, *axes))
