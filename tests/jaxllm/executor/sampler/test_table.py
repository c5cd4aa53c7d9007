"""The host's table: what each request asks for reaches the device, and keeps up with its output."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.executor.sampler.rows import IN_PROMPT, SamplingRows, empty_state, set_bias, set_row
from jaxllm.executor.sampler.table import UPDATE_SIZE, BiasUpdate, SamplingTable
from jaxllm.executor.sampler.token_bias import TokenBias
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.table import RequestTable

SLOTS, VOCAB, EOS = 4, 40, 39


def make_request(slot: int = 0, arrival: int = 0, output: list[int] | None = None, **params: Any) -> Request:
    return Request(
        request_id=f"r{slot}",
        prompt_token_ids=np.array([1, 2, 3], np.int32),
        params=SamplingParams(**params),
        eos_token_ids=(EOS,),
        slot=slot,
        arrival=arrival,
        output_token_ids=output or [],
    )


def rows_of(table: SamplingTable, slots: list[int], num_rows: int = 4, **packing: Any) -> SamplingRows:
    packing = {"steps": np.zeros(len(slots), np.int32), "samples": np.ones(len(slots), bool)} | packing
    ints, floats = table.pack(np.array(slots, np.int32), num_rows=num_rows, **packing)
    assert ints.shape == (5, num_rows)
    assert ints.dtype == np.int32
    assert floats.dtype == np.float32
    return SamplingRows.unpack(jnp.asarray(ints), jnp.asarray(floats))


def flags(rows: SamplingRows) -> set[str]:
    return {name for name in ("random", "filter", "penalty", "bias", "logprobs") if getattr(rows, f"any_{name}")}


def test_parameters_reach_their_rows() -> None:
    table = SamplingTable(SLOTS, VOCAB)
    assert table.set(make_request(0, temperature=0, top_k=3, top_p=0.5)) is None
    assert table.set(make_request(2, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=1)) is None
    assert table.set(make_request(3, temperature=2, top_k=VOCAB, presence_penalty=1, frequency_penalty=-1)) is not None
    rows = rows_of(table, [3, 0, 2], steps=np.array([4, 5, 6], np.int32))
    np.testing.assert_array_equal(rows.valid, [True, True, True, False])
    np.testing.assert_array_equal(rows.slot, [3, 0, 2, 0])
    np.testing.assert_array_equal(rows.step, [4, 5, 6, 0])
    np.testing.assert_array_equal(rows.top_k, [0, 0, 5, 0])
    np.testing.assert_allclose(rows.temperature, [2, 0, 0.7, 0])
    np.testing.assert_allclose(rows.top_p, [1, 1, 0.9, 1])
    np.testing.assert_allclose(rows.min_p, [0, 0, 0.1, 0], rtol=1e-6)
    np.testing.assert_allclose(rows.presence, [1, 0, 0, 0])
    np.testing.assert_allclose(rows.frequency, [-1, 0, 0, 0])
    np.testing.assert_allclose(rows.repetition, 1)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"temperature": 0}, set()),
        ({"temperature": 0, "top_k": 3, "top_p": 0.1, "min_p": 0.1}, set()),
        ({}, {"random"}),
        ({"top_k": 3}, {"random", "filter"}),
        ({"top_k": VOCAB}, {"random"}),
        ({"top_p": 0.5}, {"random", "filter"}),
        ({"min_p": 0.5}, {"random", "filter"}),
        ({"temperature": 0, "repetition_penalty": 1.1}, {"penalty"}),
        ({"temperature": 0, "logit_bias": {1: 1.0}}, {"bias"}),
        ({"temperature": 0, "logprobs": 0}, {"logprobs"}),
        ({"best_of": 2}, {"random", "logprobs"}),
    ],
    # The text of a set has no fixed order, and all test processes must agree on the names.
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_the_batch_computes_only_what_a_row_needs(params: dict[str, Any], wanted: set[str]) -> None:
    table = SamplingTable(SLOTS, VOCAB)
    table.set(make_request(0, temperature=0))
    table.set(make_request(1, **params))
    assert flags(rows_of(table, [0, 1])) == wanted
    assert flags(rows_of(table, [0, 1], samples=np.array([True, False]))) == set()
    assert list(table.wants_logprobs(np.array([0, 1]))) == [False, "logprobs" in wanted]
    table.set(make_request(1, temperature=0))  # the next request in the slot
    assert flags(rows_of(table, [0, 1])) == set()


def test_values_beyond_float32_stay_usable() -> None:
    table = SamplingTable(SLOTS, VOCAB)
    table.set(make_request(0, temperature=1e300, top_p=1e-300, repetition_penalty=1e-300))
    table.set(make_request(1, repetition_penalty=1e300))
    rows = rows_of(table, [0, 1])
    for values in (rows.temperature[:1], rows.top_p, rows.repetition):
        assert np.isfinite(values).all()
        assert (np.asarray(values) > 0).all()


def test_seeds() -> None:
    def seed_of(engine_seed: int = 0, **request: Any) -> int:
        table = SamplingTable(SLOTS, VOCAB, engine_seed)
        table.set(make_request(**request))
        return int(table.pack(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, bool), 1)[0][1, 0])

    assert seed_of(seed=5) == seed_of(engine_seed=9, arrival=3, seed=5)
    assert seed_of(arrival=3) == seed_of(arrival=3)
    many = [seed_of(arrival=n) for n in range(50)] + [seed_of(engine_seed=1, arrival=n) for n in range(50)]
    many += [seed_of(seed=n) for n in range(50)] + [seed_of(seed=2**63 - 1), seed_of(seed=2**40)]
    assert len(set(many)) == len(many)
    assert all(-(2**31) <= seed < 2**31 for seed in many)


def test_the_dense_row() -> None:
    table = SamplingTable(SLOTS, VOCAB)
    request = make_request(
        1,
        output=[5, 5, 7],
        presence_penalty=1,
        logit_bias={4: 2.5, 8: -1, 9: 1},
        allowed_token_ids=[4, 5, 6, 7, 9, EOS],
        bad_words_token_ids=[[6], [5, 7, 9], [5, 4]],
        min_tokens=4,
    )
    dense = table.set(request)
    assert dense is not None
    assert dense.output_counts.dtype == np.int32
    assert dict(enumerate(dense.output_counts)) == dict.fromkeys(range(VOCAB), 0) | {5: 2, 7: 1}
    np.testing.assert_array_equal(np.flatnonzero(dense.prompt_seen), [1, 2, 3])
    assert dense.bias.dtype == np.float32
    assert {t: v for t, v in enumerate(dense.bias) if v > -np.inf} == {4: 2.5, 5: 0.0, 7: 0.0}


def request_table(*requests: Request) -> RequestTable:
    table = RequestTable(SLOTS, 64, 4)
    for request in requests:
        table.requests[request.slot] = request
        advance(table, request)
    return table


def updates(sampling: SamplingTable, table: RequestTable) -> list[BiasUpdate]:
    """The changes of a step in which every request samples a token."""
    slots = np.array([request.slot for request in table.requests if request is not None], np.int32)
    return sampling.updates(table, slots, table.num_tokens[slots] - table.num_prompt_tokens[slots])


def advance(table: RequestTable, request: Request) -> None:
    table.num_prompt_tokens[request.slot] = len(request.prompt_token_ids)
    table.num_tokens[request.slot] = request.num_tokens
    table.token_ids[request.slot, : request.num_tokens] = [*request.prompt_token_ids, *request.output_token_ids]


TOKENS = st.integers(0, 5)


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=4),
    output=st.lists(TOKENS, max_size=12),
    start=st.integers(0, 12),
    min_tokens=st.integers(0, 8),
    allowed=st.none() | st.sets(TOKENS, min_size=1),
    stop=st.none() | st.sets(TOKENS, max_size=2),
)
def test_updates_keep_the_device_equal_to_a_fresh_row(
    words: list[list[int]],
    output: list[int],
    start: int,
    min_tokens: int,
    allowed: set[int] | None,
    stop: set[int] | None,
) -> None:
    params: dict[str, Any] = {
        "bad_words_token_ids": words,
        "min_tokens": min_tokens,
        "allowed_token_ids": allowed,
        "stop_token_ids": stop,
        "logit_bias": {1: 3.0, EOS: -2.0},
    }
    request = make_request(2, output=output[:start], **params)
    requests, table = request_table(request), SamplingTable(SLOTS, VOCAB)
    dense = table.set(request)
    assert dense is not None
    bias = np.zeros((SLOTS, VOCAB), np.float32)
    bias[2] = dense.bias
    for token in [*output[start:], 0]:
        for update in updates(table, requests):
            assert len(update.slots) == UPDATE_SIZE
            used = update.slots >= 0
            bias[update.slots[used], update.token_ids[used]] = update.values[used]
        row = TokenBias(request).row(np.array(request.output_token_ids, np.int32), VOCAB)
        np.testing.assert_array_equal(bias[2], row)
        request.output_token_ids.append(token)
        advance(requests, request)
    assert not bias[[0, 1, 3]].any()


def test_requests_that_cannot_change_any_more_cost_nothing() -> None:
    requests = [make_request(0, min_tokens=2), make_request(1, bad_words_token_ids=[[1, 2]]), make_request(2, top_k=1)]
    table, running = SamplingTable(SLOTS, VOCAB), request_table(*requests)
    for request in requests:
        table.set(request)
    assert updates(table, running) == []
    requests[0].output_token_ids += [7, 7]
    advance(running, requests[0])
    (update,) = updates(table, running)
    assert list(update.slots[:2]) == [0, -1]
    assert (update.token_ids[0], update.values[0]) == (EOS, 0)
    assert not table.must_wait(running)
    running.num_pending[:] = 1, 1, 1, 0
    assert table.must_wait(running)
    running.num_pending[1] = 0
    assert not table.must_wait(running), "only request 1 has bad words"
    running.num_pending[1] = 1
    running.requests[1] = None
    assert not table.must_wait(running)
    assert updates(table, running) == []
    assert table._changing == {}


def test_more_changes_than_one_update_holds() -> None:
    stops = list(range(EOS + 1, EOS + UPDATE_SIZE + 10))
    table = SamplingTable(1, 200)
    request = make_request(0, min_tokens=1, stop_token_ids=stops)
    table.set(request)
    running = request_table(request)
    request.output_token_ids.append(150)
    advance(running, request)
    first, second = updates(table, running)
    changed = [*first.token_ids, *second.token_ids[second.slots >= 0]]
    assert sorted(changed) == sorted([*stops, EOS])


def test_the_device_takes_rows_and_updates_in_place() -> None:
    table = SamplingTable(SLOTS, VOCAB)
    request = make_request(1, output=[5], presence_penalty=1, min_tokens=2)
    dense = table.set(request)
    assert dense is not None
    state = jax.jit(set_row, donate_argnums=0)(empty_state(SLOTS, VOCAB), np.int32(1), *dense)
    np.testing.assert_array_equal(state.seen[1] & (IN_PROMPT - 1), dense.output_counts)
    np.testing.assert_array_equal(np.asarray(state.seen[1]) >= IN_PROMPT, dense.prompt_seen)
    np.testing.assert_array_equal(state.bias[1], dense.bias)
    request.output_token_ids.append(6)
    for update in updates(table, request_table(request)):
        state = jax.jit(set_bias, donate_argnums=0)(state, *update)
    assert not np.any(state.bias)
    for function, arguments in ((set_row, (np.int32(0), *dense)), (set_bias, update)):
        shapes = jax.eval_shape(lambda: empty_state(64, 1000))
        wide = [np.resize(value, (1000,)) if value.shape == (VOCAB,) else value for value in arguments]
        memory = jax.jit(function, donate_argnums=0).lower(shapes, *wide).compile().memory_analysis()
        assert memory is not None
        assert memory.alias_size_in_bytes == 64 * 1000 * 8
        assert memory.temp_size_in_bytes < 64 * 1000
