"""The device side of one step: forward pass, logits, sampling and log-probabilities in a single executable.

Axis letters: T tokens, R rows, S slots, W page-table width, D hidden size, V vocabulary, K most log-probabilities.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState, StageState
from jaxllm.executor.draft_loop import draft_tokens
from jaxllm.executor.draft_state import accepted_drafts, kept_drafts, with_drafts
from jaxllm.executor.media_programs import with_media
from jaxllm.executor.sampler.blocks import put_last_tokens, sample_in_blocks
from jaxllm.executor.sampler.rows import SamplingRows
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.shards import max_over_shards
from jaxllm.executor.step_inputs import FROM_DEVICE, FROM_EMBEDDINGS, StepShape, sample_positions
from jaxllm.models.batch import Batch, GivenEmbeddings
from jaxllm.models.causal_lm import CausalLM
from jaxllm.pallas_kernels.low_rank import TokenSlots
from jaxllm.pallas_kernels.paged_attention import RaggedBatch
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE
from jaxllm.pallas_kernels.recurrence import DraftRows

Merge = Callable[[Any, Any], CausalLM]
"""Makes a model of its parameters and the arrays of its adapter slots."""


def step_body(context: ProgramContext[DeviceState], bucket: Bucket) -> ProgramBody:
    """The step of a bucket, of a whole model or of the last stage."""
    packed = context.of_shards(context.shape.layout(bucket).size)
    return ProgramBody(make_step(_merge(context), context.shape, bucket), (packed, *context.received(bucket)))


def plain_step_body(context: ProgramContext[DeviceState], tokens: int) -> ProgramBody:
    """The step of a bucket in which the drafter does nothing: what it keeps stays as it is."""
    bucket = next(bucket for bucket in context.plain_steps if bucket.tokens == tokens)
    shape = context.shape.plain
    return ProgramBody(make_step(_merge(context), shape, bucket), (context.of_shards(shape.layout(bucket).size),))


def stage_step_body(context: ProgramContext[StageState], bucket: Bucket) -> ProgramBody:
    """The step of a bucket of a stage that is not the last."""
    packed = context.of_shards(context.shape.layout(bucket).size)
    function = make_stage_step(_merge(context), context.shape, bucket, context.handover.hidden_size)
    return ProgramBody(function, (packed, *context.received(bucket)), context.handover.place(bucket))


def _merge(context: ProgramContext[Any]) -> Merge:
    """Makes the model of its parameters and the arrays of its adapter slots."""
    if context.adapted is not None:
        return context.adapted.merge
    return lambda parameters, adapters: nnx.merge(context.graph, parameters)


def make_step(merge: Merge, shape: StepShape, bucket: Bucket) -> Callable[..., Any]:
    """The function `(parameters, adapters, state, packed) -> (SampledRows [R], state)` of one bucket, ready for `jit`.

    It computes one data shard. For a stage other than the first, it also takes the hidden states of the one before it.
    """
    layout = shape.layout(bucket)

    def step(
        parameters: Any, adapters: Any, state: DeviceState, packed: jax.Array, *received: jax.Array
    ) -> tuple[SampledRows, DeviceState]:
        model = merge(parameters, adapters)
        inputs = layout.unpack(packed)
        page_table, inputs["page_table"] = _update_pages(state.page_table, inputs, shape)
        if state.drafts is not None:
            inputs["next_columns"] = jnp.maximum(inputs["kv_lens"] - 1, 0) // shape.page_size + 1
            inputs = with_drafts(inputs, state.drafts)
        preceding = _preceding_drafts(inputs, shape)
        rows = SamplingRows.unpack(inputs["sampling_ints"], inputs["sampling_floats"], preceding)
        ragged = _ragged_batch(inputs)
        known = inputs["token_ids"]
        previous = state.last_tokens[inputs["slots"][ragged.token_rows]]
        token_ids = jnp.where(known == FROM_DEVICE, previous, known)
        given = None
        if shape.takes_embeddings:
            given = GivenEmbeddings(state.hidden[: bucket.tokens], known == FROM_EMBEDDINGS)
            token_ids = jnp.maximum(token_ids, 0)
        added = None
        if state.media_pool is not None:
            given, added = with_media(given, state.media_pool, inputs["media_rows"], state.hidden.shape[1])
        rotary = _rotary(inputs, shape)
        slots = inputs["slots"] if state.kv_cache.states else None
        adapters = _token_adapters(inputs, ragged, shape)
        drafts = DraftRows.of(inputs["num_replayed"], inputs["num_drafts"]) if shape.replays_drafts else None
        batch = Batch(token_ids, ragged, slots, given, rotary, added, adapters=adapters, drafts=drafts)
        if shape.hears:
            batch = replace(batch, cross_pages=inputs["cross_pages"])
        hidden, kv_cache, tapped = model.run(batch, state.kv_cache, *received)

        num_sampled = max_over_shards(inputs["num_sampled"])
        places = inputs["sample_positions"] if shape.max_drafts else sample_positions(ragged.query_start)
        sampled, sampling = sample_in_blocks(model, hidden[places], rows, state.sampling, num_sampled, shape)
        drafter_cache, drafts_state, is_last = state.drafter_cache, state.drafts, None
        if drafter_cache is not None and drafts_state is not None:
            accepted = accepted_drafts(token_ids, sampled.token_ids, rows, inputs, shape.max_drafts)
            guesses, drafter_cache = draft_tokens(
                model, batch, hidden, tapped, sampled.token_ids, rows.valid, drafter_cache, accepted, inputs, shape
            )
            sampled = replace(sampled, drafts=guesses)
            drafts_state, is_last = kept_drafts(drafts_state, guesses, accepted, inputs["slots"]), accepted.is_last
        return sampled, DeviceState(
            kv_cache=kv_cache,
            sampling=sampling,
            page_table=page_table,
            last_tokens=put_last_tokens(state.last_tokens, rows, sampled, is_last),
            hidden=lax.dynamic_update_slice(state.hidden, hidden, (0, 0)),
            media_pool=state.media_pool,
            drafter_cache=drafter_cache,
            drafts=drafts_state,
        )

    return step


def make_stage_step(merge: Merge, shape: StepShape, bucket: Bucket, hidden_size: int) -> Callable[..., Any]:
    """The function `(parameters, adapters, state, packed, ...) -> (hidden [T, D], state)` of a stage before the last.

    Like `make_step`, but the host must know all tokens.
    """
    layout = shape.layout(bucket)

    def step(
        parameters: Any, adapters: Any, state: StageState, packed: jax.Array, *received: jax.Array
    ) -> tuple[jax.Array, StageState]:
        model = merge(parameters, adapters)
        inputs = layout.unpack(packed)
        page_table, inputs["page_table"] = _update_pages(state.page_table, inputs, shape)
        ragged = _ragged_batch(inputs)
        given = None
        if state.media_pool is not None:
            given, _ = with_media(None, state.media_pool, inputs["media_rows"], hidden_size)
        rotary = _rotary(inputs, shape)
        batch = Batch(inputs["token_ids"], ragged, None, given, rotary, adapters=_token_adapters(inputs, ragged, shape))
        hidden, kv_cache = model(batch, state.kv_cache, *received)
        return hidden, StageState(kv_cache, page_table, media_pool=state.media_pool)

    return step


def _rotary(inputs: dict[str, jax.Array], shape: StepShape) -> jax.Array | None:
    """Positions that tokens are rotated by, where these are not those in the cache."""
    return inputs["positions"] + inputs["rotary_offsets"] if shape.has_grid_positions else None


def _preceding_drafts(inputs: dict[str, jax.Array], shape: StepShape) -> jax.Array | None:
    """The drafts of its request before each token to sample, the last one first: int32 [N, K], -1 where there is none.

    None where there are no drafts.
    """
    if not shape.max_drafts:
        return None
    back = jnp.arange(shape.max_drafts, dtype=jnp.int32)
    tokens = inputs["token_ids"][jnp.maximum(inputs["sample_positions"][:, None] - back, 0)]
    return jnp.where(back < inputs["num_preceding"][:, None], tokens, -1)


def _token_adapters(inputs: dict[str, jax.Array], ragged: RaggedBatch, shape: StepShape) -> TokenSlots | None:
    """The slots of the tokens' adapters, where there are slots."""
    if shape.adapters is None:
        return None
    rows = inputs["adapter_slots"][ragged.token_rows]
    starts = inputs["adapter_starts"][ragged.token_rows]
    is_token = jnp.arange(len(rows), dtype=jnp.int32) < ragged.num_tokens
    has_adapter = is_token & (inputs["positions"] >= starts)
    return TokenSlots.of(jnp.where(has_adapter, rows, -1), shape.adapters.num_slots, shape.adapters.rank)


def _ragged_batch(inputs: dict[str, jax.Array]) -> RaggedBatch:
    """The batch of a step whose inputs have the rows' pages."""
    known = [field.name for field in fields(RaggedBatch) if field.name in inputs]
    return RaggedBatch(**{name: inputs[name] for name in known})


def _update_pages(page_table: jax.Array, inputs: dict[str, jax.Array], shape: StepShape) -> tuple[jax.Array, jax.Array]:
    """Write down the pages that the rows have grown into; the table [S, G * W], and the rows' part of it [R, G * W].

    The host writes rows that have several new pages, so the only page that can be new is that of the row's last token.
    Writing it again in every step does no harm.
    """
    slots, kv_lens = inputs["slots"], inputs["kv_lens"]
    is_row = kv_lens > 0
    column = jnp.maximum(kv_lens - 1, 0) // shape.page_size
    outside = jnp.where(is_row, slots, page_table.shape[0])
    last_pages = inputs["last_pages"]
    for table, pages in enumerate([last_pages] if shape.num_tables == 1 else last_pages):
        place = column + table * shape.table_width if table else column
        page_table = page_table.at[outside, place].set(pages, mode="drop")
    rows = page_table.at[slots].get(mode="promise_in_bounds")
    return page_table, jnp.where(is_row[:, None], rows, NULL_PAGE)
