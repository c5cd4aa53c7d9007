"""Drafts by the device: at the end of a step the model's drafter guesses at what follows, for the step after it.

The drafter reads all tokens of the step, each with the token after it, and so keeps up with the model's cache. Then it
goes on alone from the last token that is accepted, a guess at a time. The device tells that token from what it has
sampled, before the host knows.

Axis letters: T tokens, R rows, N tokens to sample, D hidden size, K most drafts of a row.
"""

from dataclasses import replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.executor.draft_state import Accepted
from jaxllm.executor.shards import max_over_shards
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.drafters.guessing import Ahead
from jaxllm.models.drafters.plan import States

Carry = tuple[jax.Array, States, Cache]
"""Tokens [R, K], what the drafter goes on from, and its cache."""

Values = TypeVar("Values")


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
    ends = jnp.maximum(ragged.query_start[1:] - 1, 0)
    lasts = jnp.where(accepted.counts >= 0, accepted.places, ends)

    def follow(index: jax.Array, carry: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
        own = Batch(batch.token_ids, ragged, inputs["slots"], rotary_positions=batch.rotary_positions)
        read, below, taps = _only_in(index, (after, hidden, between))
        return drafter.follow(model, own, read, lasts, below, taps, carry[1])

    nothing = jax.eval_shape(follow, jnp.int32(0), (hidden, cache))[0]
    # A loop of one round or none, which has the cache in place.
    none = jnp.zeros(nothing.shape, nothing.dtype)
    states, cache = lax.fori_loop(0, jnp.minimum(steps + 1, 1), follow, (none, cache))
    turned = batch.rotary_positions
    # Guesses may go on to the page after that of the last token, which the device's table does not have yet.
    rows = jnp.arange(len(lasts), dtype=jnp.int32)
    table = ragged.page_table.at[rows, inputs["next_columns"]].set(inputs["next_pages"], mode="drop")
    sampled_first = drafter.begins_with_sampled
    ahead = Ahead(
        replace(ragged, page_table=table),
        starts=ragged.positions[lasts],
        # The first column is what the drafter goes on from: a sampled token, or its own first guess.
        tokens=jnp.zeros((len(lasts), shape.max_drafts + sampled_first), jnp.int32),
        known=0,
        max_model_len=model.options.max_model_len,
        turned=None if turned is None else (turned - batch.ragged.positions)[:, lasts],
    )
    if sampled_first:
        ahead = ahead._replace(tokens=ahead.tokens.at[:, 0].set(after[lasts]))
    tokens, cache = _guesses(model, ahead, jnp.maximum(steps, 0), states, cache, shape.max_drafts)
    return tokens[:, int(sampled_first) :], cache


def _guesses(
    model: CausalLM, ahead: Ahead, steps: jax.Array, states: States, cache: Cache, most: int
) -> tuple[jax.Array, Cache]:
    """The tokens after those of the step with `steps` guesses, at most `most`, and the drafter's cache with them."""
    drafter = model.drafter
    assert drafter is not None
    first = int(drafter.begins_with_sampled)

    def put(tokens: jax.Array, number: jax.Array | int, own: int, states: States) -> jax.Array:
        token_ids = drafter.guess(model, own, states, ahead.ragged.num_requests)
        return lax.dynamic_update_slice_in_dim(tokens, token_ids[:, None], number + first, axis=1)

    def make_one(own: int, number: jax.Array, carry: Carry) -> Carry:
        tokens, states, cache = carry
        known = ahead._replace(tokens=tokens, known=number + first)
        states, cache = drafter.go_on(model, known, own, states, cache)
        return put(tokens, number, own, states), states, cache

    tokens = ahead.tokens
    if not first:
        # A loop of no rounds where nobody wants any: then the output layer is not read.
        tokens = lax.fori_loop(
            0, jnp.minimum(steps, 1), lambda index, tokens: put(tokens, 0, 0, _only_in(index, states)), tokens
        )
    carry, begin = (tokens, states, cache), 1 - first
    for number in range(begin, min(drafter.own_guesses, most)):
        end = jnp.where(steps > number, number + 1, number)
        carry = lax.fori_loop(number, end, partial(make_one, number), carry)
    begin = max(begin, drafter.own_guesses)
    if begin < most:
        carry = lax.fori_loop(begin, steps, partial(make_one, drafter.own_guesses), carry)
    return carry[0], carry[2]


def _only_in(index: jax.Array, values: Values) -> Values:
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
