"""The device side of one step: forward pass, logits, sampling and log-probabilities in a single executable.

Axis letters: T tokens, R rows, S slots, W page-table width, D hidden size, V vocabulary, K most log-probabilities.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.logprobs import Logprobs, gather_logprobs, no_logprobs
from jaxllm.executor.sampler.logprobs_mode import RAW
from jaxllm.executor.sampler.rows import FLOAT_FIELDS, INT_FIELDS, SamplingRows, SamplingState
from jaxllm.executor.sampler.sampler import SampledRows, sample
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.executor.shards import local_slots, max_over_shards
from jaxllm.models.batch import Batch, GivenEmbeddings
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import CausalLM
from jaxllm.pallas_kernels.paged_attention import RaggedBatch
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE
from jaxllm.requests.prompt_embeds import NO_TOKEN

FROM_DEVICE = -1
"""Input token id that stands for the token sampled last in the same slot, which the host may not know yet."""

FROM_EMBEDDINGS = NO_TOKEN
"""Input token id that stands for an embedding, which `set_embeddings` has put in the token's place."""

PROMPT_LOGPROB_ROWS = 64
"""Prompt positions whose log-probabilities one call computes."""


def embeddings_at_once(most_tokens: int) -> int:
    """Embeddings that one call of `set_embeddings` brings, of a step that has at most so many tokens."""
    return min(256, most_tokens)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StageState:
    """What stays on the devices of a stage of layers from step to step; donated, so that it is updated in place."""

    kv_cache: Cache
    page_table: jax.Array
    """int32 [S, G * W], pages of the request in each slot, in order, of one table after the other.

    `NULL_PAGE` where there is none yet. Where the request gave a page back, its entry may be another's page: no token
    sees what it holds.
    """


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceState(StageState):
    """The same of devices that sample: those of the last stage, or of all layers.

    With data shards every one has its own: pages, slots and places of hidden states of all lie one behind the other.
    """

    sampling: SamplingState
    last_tokens: jax.Array
    """int32 [S], the token sampled last in each slot."""
    hidden: jax.Array
    """[largest T, D], hidden states of the last step, for log-probabilities of prompts.

    Where prompts may be embeddings, those of the next step replace them once nobody asks for them any more.
    """


@dataclass(frozen=True)
class StepShape:
    """What all step executables of an engine have in common."""

    table_width: int
    """Pages in one page table of a request."""
    page_size: int
    max_logprobs: int
    sample_rows: int
    """Rows whose logits are computed at a time; the last block may be partly padding."""
    sampling: str = "xla"
    """How tokens are chosen, an implementation of `choose_tokens`."""
    logprobs_mode: str = RAW
    """Which numbers stand beside tokens, see `jaxllm.executor.sampler.logprobs_mode`."""
    num_tables: int = 1
    """Page tables of a request, which lie side by side."""
    shards: int = 1
    """Data shards. All else is of one of them, and so is a `Bucket`."""
    takes_embeddings: bool = False
    """Whether prompts may be embeddings."""

    @property
    def rows_at_once(self) -> int:
        """Rows of the page table that one call of `set_pages` writes: at most 16, and about 64 kB."""
        return max(1, min(16, 16384 // (self.num_tables * self.table_width)))

    def layout(self, bucket: Bucket) -> PackedLayout:
        """The packed input of a bucket."""
        tokens, rows = bucket.tokens, bucket.rows
        return PackedLayout(
            {
                "token_ids": ((tokens,), np.int32),
                "positions": ((tokens,), np.int32),
                "token_rows": ((tokens,), np.int32),
                "query_start": ((rows + 1,), np.int32),
                "kv_lens": ((rows,), np.int32),
                "slots": ((rows,), np.int32),
                # Where each row's last token goes, in each of its tables.
                "last_pages": ((rows,) if self.num_tables == 1 else (self.num_tables, rows), np.int32),
                "num_tokens": ((), np.int32),
                "num_decodes": ((), np.int32),
                "num_requests": ((), np.int32),
                "num_sampled": ((), np.int32),  # rows behind these get no token here
                "sampling_ints": ((len(INT_FIELDS), rows), np.int32),
                "sampling_floats": ((len(FLOAT_FIELDS), rows), np.float32),
            }
        )


def make_step(graph: nnx.GraphDef[CausalLM], shape: StepShape, bucket: Bucket) -> Callable[..., Any]:
    """The function `(parameters, state, packed) -> (SampledRows [R], state)` of one bucket, ready for `jit`.

    It is that of a data shard. Of a stage that is not the first, it also takes the hidden states of the one before it.
    """
    layout = shape.layout(bucket)

    def step(
        parameters: Any, state: DeviceState, packed: jax.Array, *received: jax.Array
    ) -> tuple[SampledRows, DeviceState]:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        rows = SamplingRows.unpack(inputs["sampling_ints"], inputs["sampling_floats"])
        page_table, ragged = _with_pages(state.page_table, inputs, shape)
        known = inputs["token_ids"]
        previous = state.last_tokens[inputs["slots"][ragged.token_rows]]
        token_ids = jnp.where(known == FROM_DEVICE, previous, known)
        given = None
        if shape.takes_embeddings:
            given = GivenEmbeddings(state.hidden[: bucket.tokens], known == FROM_EMBEDDINGS)
            token_ids = jnp.maximum(token_ids, 0)
        batch = Batch(token_ids, ragged, inputs["slots"] if state.kv_cache.states else None, given)
        hidden, kv_cache = model(batch, state.kv_cache, *received)

        last = jnp.maximum(ragged.query_start[1:] - 1, 0)
        num_sampled = max_over_shards(inputs["num_sampled"])
        sampled, sampling = sample_in_blocks(model, hidden[last], rows, state.sampling, num_sampled, shape)
        slots = jnp.where(rows.valid, rows.slot, state.last_tokens.shape[0])
        return sampled, DeviceState(
            kv_cache=kv_cache,
            sampling=sampling,
            page_table=page_table,
            last_tokens=state.last_tokens.at[slots].set(sampled.token_ids, mode="drop"),
            hidden=lax.dynamic_update_slice(state.hidden, hidden, (0, 0)),
        )

    return step


def make_stage_step(graph: nnx.GraphDef[CausalLM], shape: StepShape, bucket: Bucket) -> Callable[..., Any]:
    """The function `(parameters, state, packed, ...) -> (hidden [T, D], state)` of a stage that is not the last.

    Like `make_step`, but the host must know all tokens.
    """
    layout = shape.layout(bucket)

    def step(
        parameters: Any, state: StageState, packed: jax.Array, *received: jax.Array
    ) -> tuple[jax.Array, StageState]:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        page_table, ragged = _with_pages(state.page_table, inputs, shape)
        hidden, kv_cache = model(Batch(inputs["token_ids"], ragged), state.kv_cache, *received)
        return hidden, StageState(kv_cache, page_table)

    return step


def _with_pages(page_table: jax.Array, inputs: dict[str, jax.Array], shape: StepShape) -> tuple[jax.Array, RaggedBatch]:
    """The table [S, G * W] with the pages that rows have grown into, and the batch with theirs."""
    page_table, inputs["page_table"] = _update_pages(page_table, inputs, shape)
    return page_table, RaggedBatch(**{field.name: inputs[field.name] for field in fields(RaggedBatch)})


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


def set_pages(page_table: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """Replace the rows of `slots` (int32 [U]) in a table [S, W] by `rows` [U, W]; a slot of -1 is padding."""
    slots = local_slots(slots, page_table.shape[0])
    outside = jnp.where(slots < 0, page_table.shape[0], slots)
    return page_table.at[outside].set(rows, mode="drop")


def set_embeddings(hidden: jax.Array, places: jax.Array, rows: jax.Array) -> jax.Array:
    """Put `rows` [E, D] at `places` (int32 [E]) of the next step's tokens, in `DeviceState.hidden`; -1 is padding."""
    places = local_slots(places, hidden.shape[0])
    outside = jnp.where(places < 0, hidden.shape[0], places)
    return hidden.at[outside].set(rows, mode="drop")


def copy_places(arrays: Any, places: jax.Array, count: jax.Array) -> Any:
    """Copy pages or slots of arrays [L, P, ...], of the first `count` pairs (from, to) in `places` int32 [2, N].

    They are copied in this order.
    """

    def copy_of(array: jax.Array, index: jax.Array) -> jax.Array:
        place = lax.dynamic_slice_in_dim(array, places[0, index], 1, axis=1)
        return lax.dynamic_update_slice_in_dim(array, place, places[1, index], axis=1)

    def copy(index: jax.Array, arrays: Any) -> Any:
        return jax.tree.map(partial(copy_of, index=index), arrays)

    # One after the other, in place: gathering all at first would take room for all.
    return lax.fori_loop(0, count.reshape(()), copy, arrays)


def sample_in_blocks(
    model: CausalLM,
    hidden: jax.Array,
    rows: SamplingRows,
    state: SamplingState,
    num_rows: jax.Array,
    shape: StepShape,
    masks: jax.Array | None = None,
    given: dict[str, jax.Array] | None = None,
    alter: Callable[..., jax.Array] | None = None,
) -> tuple[SampledRows, SamplingState]:
    """Sample from `hidden` [R, D] in blocks of rows and stop after `num_rows` (int32 []), the last row in use.

    A bucket for a large prompt has room for many requests; without blocks it would pay for all their logits. `masks`
    int32 [R, W] say which tokens are allowed, see `sample`. `alter(model, logits, rows, state, given)` makes the logits
    that tokens are chosen by, of a block's rows; `given` has arrays [R, ...].
    """
    part_of = partial(
        sample, max_logprobs=shape.max_logprobs, implementation=shape.sampling, logprobs_mode=shape.logprobs_mode
    )
    choose = over_vocabulary(part_of, model.options.mesh, (SPLIT, SAME, SPLIT, SAME, SAME, SPLIT), (SAME, SPLIT))

    def sample_block(inputs: Any, state: SamplingState, num_rows: jax.Array) -> tuple[SampledRows, SamplingState]:
        hidden, rows, masks, given = inputs
        logits = model.logits(hidden, num_rows)
        altered = None if alter is None else alter(model, logits, rows, state, given)
        sampled, state = choose(logits, rows, state, masks, num_rows, altered)
        if altered is not None:
            sampled = replace(sampled, is_empty=~jnp.isfinite(altered.max(axis=1)))
        return sampled, state

    inputs = (hidden, rows, masks, given)
    return _in_blocks(sample_block, inputs, state, num_rows, shape, altered=alter is not None)


def _in_blocks(
    sample_block: Callable[[Any, SamplingState, jax.Array], tuple[SampledRows, SamplingState]],
    inputs: Any,
    state: SamplingState,
    num_rows: jax.Array,
    shape: StepShape,
    *,
    altered: bool,
) -> tuple[SampledRows, SamplingState]:
    """`sample_block(inputs, state, num_rows)`, for some rows of the `inputs` [R, ...] at a time where R is larger."""
    total, size, max_logprobs = jax.tree.leaves(inputs)[0].shape[0], shape.sample_rows, shape.max_logprobs
    if total <= size:
        return sample_block(inputs, state, num_rows)
    padding = -total % size
    inputs = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, padding), *((0, 0),) * (leaf.ndim - 1))) if leaf.ndim else leaf, inputs
    )

    def block(index: jax.Array, carry: tuple[SampledRows, SamplingState]) -> tuple[SampledRows, SamplingState]:
        sampled, state = carry
        first = index * size

        def part(leaf: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(leaf, first, size) if leaf.ndim else leaf

        new, state = sample_block(jax.tree.map(part, inputs), state, jnp.minimum(num_rows - first, size))
        return jax.tree.map(lambda old, leaf: lax.dynamic_update_slice_in_dim(old, leaf, first, 0), sampled, new), state

    no_tokens = jnp.zeros(total + padding, jnp.int32)
    empty = SampledRows(no_tokens, no_logprobs(total + padding, max_logprobs), no_tokens != 0 if altered else None)
    sampled, state = lax.fori_loop(0, (num_rows + size - 1) // size, block, (empty, state))
    return jax.tree.map(lambda leaf: leaf[:total], sampled), state


def make_prompt_logprobs(
    graph: nnx.GraphDef[CausalLM], max_logprobs: int, *, normalized: bool = True
) -> Callable[..., Any]:
    """The function `(parameters, hidden, first, targets) -> Logprobs` for 64 positions of the last step.

    `hidden` is `DeviceState.hidden`, `first` the first position in it, `targets` int32 [64] the tokens that follow.
    Unless `normalized`, it gives logits.
    """

    def prompt_logprobs(parameters: Any, hidden: jax.Array, first: jax.Array, targets: jax.Array) -> Logprobs:
        model = nnx.merge(graph, parameters)
        padded = jnp.pad(hidden, ((0, PROMPT_LOGPROB_ROWS), (0, 0)))
        logits = model.logits(lax.dynamic_slice_in_dim(padded, first, PROMPT_LOGPROB_ROWS))
        gather = over_vocabulary(
            partial(gather_logprobs, num_top=max_logprobs, normalized=normalized),
            model.options.mesh,
            (SPLIT, SAME),
            SAME,
        )
        found: Logprobs = gather(logits, targets)
        return found

    return prompt_logprobs
