"""Drafts by the device: at the end of a step the model's drafter guesses at what follows, for the step after it.

The drafter reads all tokens of the step, each with the token after it, and so keeps up with the model's cache. Then it
goes on alone from the last token that is accepted, a guess at a time. The device tells that token from what it has
sampled, before the host knows.

Axis letters: T tokens, R rows, N tokens to sample, D hidden size, K most drafts of a row.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.executor.draft_state import Accepted
from jaxllm.executor.shards import max_over_shards
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import CausalLM
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def draft_tokens(
    model: CausalLM,
    batch: Batch,
    hidden: jax.Array,
    tapped: tuple[jax.Array, ...],
    sampled: jax.Array,
    is_sampled: jax.Array,
    cache: Cache,
    accepted: Accepted,
    inputs: dict[str, jax.Array],
    shape: StepShape,
) -> tuple[jax.Array, Cache]:
    """Guesses int32 [R, K] at what follows the rows of a step, and the drafter's cache with the step's tokens.

    `hidden` [T, D] are the model's hidden states of the step, and `tapped` those that the drafter reads between layers.
    `sampled` int32 [N] are the step's tokens, where `is_sampled` (bool [N]) says so, and `accepted` which of its drafts
    are. The first `inputs["draft_steps"]` of the guesses are made, and those of rows that sample nothing mean nothing.
    Where that is -1 in all shards, the drafter does nothing.
    """
    drafter = model.drafter
    assert drafter is not None
    ragged = replace(batch.ragged, page_table=batch.ragged.page_table[:, : shape.table_width])
    after = tokens_after(batch, sampled, is_sampled, inputs)
    between = jnp.concatenate(tapped, axis=1) if tapped else hidden[:, :0]
    steps = max_over_shards(inputs["draft_steps"])

    def follow(index: jax.Array, carry: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
        own = Batch(batch.token_ids, ragged, rotary_positions=batch.rotary_positions)
        read, below, tapped = _only_in(index, after, hidden, between)
        return drafter.follow(model, own, read, below, tapped, carry[1])

    nothing = jax.eval_shape(follow, jnp.int32(0), (hidden, cache))[0]
    # A loop of one round or none, which has the cache in place.
    followed = lax.fori_loop(0, jnp.minimum(steps + 1, 1), follow, (jnp.zeros(nothing.shape, nothing.dtype), cache))
    (states, cache), steps = followed, jnp.maximum(steps, 0)
    lasts = accepted.places
    start, states = ragged.positions[lasts], states[lasts]
    turned = batch.rotary_positions
    # Guesses are text, which turns by its place and as much as the token before it more or less.
    ahead = None if turned is None else (turned - batch.ragged.positions)[:, lasts]
    # Guesses may go on to the page after that of the last token, which the device's table does not have yet.
    rows = jnp.arange(len(lasts), dtype=jnp.int32)
    table = ragged.page_table.at[rows, inputs["next_columns"]].set(inputs["next_pages"], mode="drop")
    ragged = replace(ragged, page_table=table)
    # The first column is what the drafter goes on from: a sampled token, or its own first guess.
    sampled_first = drafter.begins_with_sampled
    tokens = jnp.zeros((len(lasts), shape.max_drafts + sampled_first), jnp.int32)

    def put(tokens: jax.Array, index: jax.Array | int, states: jax.Array) -> jax.Array:
        own = drafter.guess(model, states, ragged.num_requests)
        return lax.dynamic_update_slice_in_dim(tokens, own[:, None], index, axis=1)

    def make_one(index: jax.Array, carry: tuple[jax.Array, jax.Array, Cache]) -> tuple[jax.Array, jax.Array, Cache]:
        tokens, states, cache = carry
        token = lax.dynamic_index_in_dim(tokens, index - 1, axis=1, keepdims=False)
        single = _single_tokens(ragged, start + index, model.options.max_model_len)
        one = Batch(token, single, rotary_positions=None if ahead is None else single.positions + ahead)
        states, cache = drafter.go_on(model, one, states, cache)
        return put(tokens, index, states), states, cache

    if sampled_first:
        tokens, steps = tokens.at[:, 0].set(after[lasts]), jnp.where(steps > 0, steps + 1, 0)
    else:
        # A loop of no rounds where nobody wants any: then the output layer is not read.
        tokens = lax.fori_loop(
            0, jnp.minimum(steps, 1), lambda index, tokens: put(tokens, 0, *_only_in(index, states)), tokens
        )
    tokens, _, cache = lax.fori_loop(1, steps, make_one, (tokens, states, cache))
    return tokens[:, int(sampled_first) :], cache


def _only_in(index: jax.Array, *values: jax.Array) -> tuple[jax.Array, ...]:
    """The values in round `index` of a loop.

    XLA moves out of a loop what is the same in all rounds, and would compute it in steps whose loop has none.
    """
    _, own = lax.optimization_barrier((index, values))
    return own


def tokens_after(batch: Batch, sampled: jax.Array, is_sampled: jax.Array, inputs: dict[str, jax.Array]) -> jax.Array:
    """The token after each token of a step, int32 [T]: the next of its row, a sampled one, or one the host knows."""
    token_ids, ragged = batch.token_ids, batch.ragged
    tokens = jnp.roll(token_ids, -1)
    ends = jnp.where(ragged.kv_lens > 0, ragged.query_start[1:] - 1, len(token_ids))
    tokens = tokens.at[ends].set(inputs["next_ids"], mode="drop")
    places = jnp.where(is_sampled, inputs["sample_positions"], len(token_ids))
    return tokens.at[places].set(sampled, mode="drop")


def _single_tokens(ragged: RaggedBatch, positions: jax.Array, length: int) -> RaggedBatch:
    """A batch of one token for each row of another, at `positions` (int32 [R])."""
    rows = jnp.arange(len(positions), dtype=jnp.int32)
    is_row = rows < ragged.num_requests
    # What lies outside of a request's length is a guess that nobody will use.
    positions = jnp.where(is_row, jnp.minimum(positions, length - 1), 0)
    return RaggedBatch(
        positions=positions,
        token_rows=jnp.where(is_row, rows, 0),
        query_start=jnp.minimum(jnp.arange(len(positions) + 1, dtype=jnp.int32), ragged.num_requests),
        kv_lens=jnp.where(is_row, positions + 1, 0),
        page_table=ragged.page_table,
        num_tokens=ragged.num_requests,
        num_decodes=ragged.num_requests,
        num_requests=ragged.num_requests,
    )
