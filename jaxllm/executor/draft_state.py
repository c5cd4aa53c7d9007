"""What a step takes over from the step before it, whose drafts the host has not heard of yet.

The host schedules such a step as if all drafts of the one before it were accepted. The device knows how many were, so
here the rows are moved back to where they belong, and get the tokens that only the device knows.

Axis letters: T tokens, R rows, N tokens to sample, S slots, K most drafts of a row.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxllm.executor.sampler.rows import INT_FIELDS, SamplingRows
from jaxllm.executor.step_inputs import FROM_DRAFTS

_STEP = INT_FIELDS.index("step")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftState:
    """What the device knows of drafts, for each slot."""

    ids: jax.Array
    """int32 [S, K], guesses at what follows the slot's last step."""
    accepted: jax.Array
    """int32 [S], drafts of that step that were accepted."""


class Accepted(NamedTuple):
    """Which drafts of a step are accepted, as far as the device has sampled."""

    places: jax.Array
    """int32 [R], the last token of each row that counts: the last accepted draft, or the one before drafts."""
    counts: jax.Array
    """int32 [R], drafts that are accepted; -1 for rows that sample nothing."""
    is_last: jax.Array
    """bool [N], what was sampled is the last token of its request now."""


def with_drafts(inputs: dict[str, jax.Array], drafts: DraftState) -> dict[str, jax.Array]:
    """The inputs of a step as the host would have written them if it had known of the step before.

    To be called when the pages that they bring are in the table.
    """
    slots, token_rows, kv_lens = inputs["slots"], inputs["token_rows"], inputs["kv_lens"]
    unknown = inputs["num_unknown"]
    back = jnp.where(unknown > 0, unknown - drafts.accepted[slots], 0)
    places = FROM_DRAFTS - inputs["token_ids"]
    own = drafts.ids[slots[token_rows], jnp.clip(places, 0, drafts.ids.shape[1] - 1)]
    changed = {
        "token_ids": jnp.where(places >= 0, own, inputs["token_ids"]),
        # Padding is at position 0, in the first row.
        "positions": jnp.maximum(inputs["positions"] - back[token_rows], 0),
        "kv_lens": kv_lens - back,
        "sampling_ints": inputs["sampling_ints"].at[_STEP].add(-back[token_rows[inputs["sample_positions"]]]),
    }
    if "visible_until" in inputs:
        changed["visible_until"] = jnp.maximum(inputs["visible_until"] - back[token_rows], 0)
    return {**inputs, **changed}


def accepted_drafts(
    token_ids: jax.Array, sampled: jax.Array, rows: SamplingRows, inputs: dict[str, jax.Array], most: int
) -> Accepted:
    """Which drafts of a step are accepted, at most `most` of a row.

    `token_ids` int32 [T] are the step's, and `sampled` int32 [N] what was sampled for `rows`. A draft is accepted if
    those before it are, and it is what was sampled after the token before it.
    """
    places, preceding = inputs["sample_positions"], inputs["num_preceding"]
    is_right = token_ids[places] == jnp.roll(sampled, 1)
    accepted = preceding == 0
    for number in range(1, most + 1):
        accepted |= (preceding == number) & is_right & jnp.roll(accepted, 1)
    accepted &= rows.valid
    num_rows = len(inputs["kv_lens"])
    of_rows = inputs["token_rows"][places]
    outside = jnp.where(accepted, of_rows, num_rows)
    counts = jnp.full(num_rows, -1, jnp.int32).at[outside].max(preceding, mode="drop")
    lasts = jnp.zeros(num_rows, jnp.int32).at[outside].max(places, mode="drop")
    return Accepted(lasts, counts, accepted & (preceding == counts[of_rows]))


def kept_drafts(drafts: DraftState, guesses: jax.Array, accepted: Accepted, slots: jax.Array) -> DraftState:
    """What is known after a step whose rows are in `slots` (int32 [R]), with its `guesses` (int32 [R, K])."""
    outside = jnp.where(accepted.counts >= 0, slots, len(drafts.accepted))
    return DraftState(
        drafts.ids.at[outside].set(guesses, mode="drop"),
        drafts.accepted.at[outside].set(accepted.counts, mode="drop"),
    )
