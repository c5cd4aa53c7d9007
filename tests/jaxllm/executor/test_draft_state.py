"""What the device makes of a step that was scheduled before it was known which drafts are right."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.executor.draft_state import DraftState, accepted_drafts, kept_drafts, with_drafts
from jaxllm.executor.sampler.rows import INT_FIELDS
from jaxllm.executor.step_inputs import FROM_DEVICE, FROM_DRAFTS
from jaxllm.speculation.acceptance import accept_drafts

TOKENS, ROWS, SLOTS, MOST = 24, 5, 7, 3
Arrays = dict[str, Any]

row_of = st.fixed_dictionaries({
    "start": st.integers(2, 50),
    "drafts": st.integers(0, MOST),
    "unknown": st.integers(0, MOST),
    "accepted": st.integers(0, MOST),
    "samples": st.booleans(),
})  # fmt: skip
rows_of = st.lists(row_of, min_size=1, max_size=ROWS)


def inputs_of(rows: list[dict[str, int]], starts: list[int]) -> Arrays:
    """The fields of a step whose rows, in the slots 1, 2, ..., begin at `starts`, as `HostStep` lays them out."""
    inputs: Arrays = {
        name: np.zeros(size, np.int32)
        for name, size in (("token_ids", TOKENS), ("positions", TOKENS), ("token_rows", TOKENS), ("kv_lens", ROWS),
                           ("slots", ROWS), ("num_unknown", ROWS), ("sample_positions", TOKENS),
                           ("num_preceding", TOKENS), ("visible_until", TOKENS))
    }  # fmt: skip
    inputs["sampling_ints"] = np.zeros((len(INT_FIELDS), TOKENS), np.int32)
    end = 0
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        first, end = end, end + 1 + row["drafts"]
        own, places = slice(first, end), np.arange(1 + row["drafts"])
        inputs["token_rows"][own], inputs["positions"][own] = number, start + places
        inputs["visible_until"][own] = start + places + 1
        inputs["kv_lens"][number], inputs["slots"][number] = start + 1 + row["drafts"], number + 1
        inputs["num_unknown"][number] = row["unknown"]
        # Every token is sampled after, so that places of tokens and of samples are the same.
        inputs["sample_positions"][own], inputs["num_preceding"][own] = np.arange(first, end), places
        inputs["sampling_ints"][INT_FIELDS.index("step"), own] = start + places - 1
    return inputs


@settings(deadline=None)
@given(rows=rows_of, seed=st.integers(0, 999))
def test_rows_go_back_to_where_the_host_would_have_put_them(rows: list[dict[str, int]], seed: int) -> None:
    for row in rows:
        row["accepted"] = min(row["accepted"], row["unknown"])
    starts = [row["start"] for row in rows]
    bounds = [row["start"] + row["unknown"] - row["accepted"] for row in rows]
    wanted, given_inputs = inputs_of(rows, starts), inputs_of(rows, bounds)
    rng = np.random.default_rng(seed)
    # Of slots without drafts under way, what was accepted is of an earlier step.
    ids, accepted = rng.integers(100, 200, (SLOTS, MOST)), rng.integers(0, MOST + 1, SLOTS)
    num_tokens = sum(1 + row["drafts"] for row in rows)
    place = 0
    for number, row in enumerate(rows):
        slot = number + 1
        accepted[slot] = row["accepted"] if row["unknown"] else accepted[slot]
        given_inputs["token_ids"][place] = wanted["token_ids"][place] = FROM_DEVICE
        for draft in range(row["drafts"]):
            given_inputs["token_ids"][place + 1 + draft] = FROM_DRAFTS - draft
            wanted["token_ids"][place + 1 + draft] = ids[slot, draft]
        place += 1 + row["drafts"]
    state = DraftState(jnp.asarray(ids, jnp.int32), jnp.asarray(accepted, jnp.int32))
    found = jax.jit(with_drafts)({name: jnp.asarray(each) for name, each in given_inputs.items()}, state)
    for name in ("token_ids", "positions", "visible_until"):
        np.testing.assert_array_equal(found[name][:num_tokens], wanted[name][:num_tokens], name)
        assert (np.asarray(found[name]) >= FROM_DEVICE).all()
    np.testing.assert_array_equal(found["kv_lens"], wanted["kv_lens"])
    np.testing.assert_array_equal(found["sampling_ints"][:, :num_tokens], wanted["sampling_ints"][:, :num_tokens])


@jax.jit
def accept(token_ids: Any, sampled: Any, valid: Any, inputs: Arrays, state: DraftState, guesses: Any) -> Any:
    rows: Any = SimpleNamespace(valid=valid)
    found = accepted_drafts(token_ids, sampled, rows, inputs, MOST)
    return found, kept_drafts(state, guesses, found, inputs["slots"])


@settings(deadline=None)
@given(rows=rows_of, seed=st.integers(0, 999))
def test_the_device_accepts_what_the_host_accepts(rows: list[dict[str, int]], seed: int) -> None:
    inputs, rng = inputs_of(rows, [row["start"] for row in rows]), np.random.default_rng(seed)
    num_drafts = np.array([row["drafts"] for row in rows], np.int32)
    samples = np.array([row["samples"] for row in rows])
    num_tokens = int((1 + num_drafts).sum())
    token_ids, sampled = rng.integers(0, 2, TOKENS).astype(np.int32), rng.integers(0, 2, TOKENS).astype(np.int32)
    valid = np.zeros(TOKENS, np.bool_)
    valid[:num_tokens] = np.repeat(samples, 1 + num_drafts)
    state = DraftState(jnp.full((SLOTS, MOST), -5), jnp.full(SLOTS, -5))
    guesses = rng.integers(0, 9, (ROWS, MOST)).astype(np.int32)
    found, state = accept(token_ids, sampled, valid, inputs, state, guesses)

    is_draft = np.concatenate([np.arange(1 + count) > 0 for count in num_drafts])
    _, counts = accept_drafts(sampled[:num_tokens], num_drafts, token_ids[:num_tokens][is_draft])
    firsts = np.cumsum(1 + num_drafts) - (1 + num_drafts)
    np.testing.assert_array_equal(found.counts[: len(rows)], np.where(samples, counts - 1, -1))
    np.testing.assert_array_equal(found.counts[len(rows) :], -1)
    lasts = (firsts + counts - 1)[samples]
    np.testing.assert_array_equal(np.asarray(found.places)[: len(rows)][samples], lasts)
    assert set(np.flatnonzero(found.is_last).tolist()) == set(lasts.tolist())
    # Slots of other rows keep what they had.
    slots = 1 + np.flatnonzero(samples)
    others = np.setdiff1d(np.arange(SLOTS), slots)
    np.testing.assert_array_equal(np.asarray(state.accepted)[slots], (counts - 1)[samples])
    np.testing.assert_array_equal(np.asarray(state.ids)[slots], guesses[: len(rows)][samples])
    assert (np.asarray(state.accepted)[others] == -5).all()
    assert (np.asarray(state.ids)[others] == -5).all()
