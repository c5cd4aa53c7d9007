"""Scheduling ahead of the device changes no answer, whatever the requests ask for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from tests.e2e.driving import Answer, make_engine, request, run

SCHEMA = {
    "type": "object",
    "properties": {"a long name": {"type": "string"}, "kind": {"enum": ["one of them", "one more"]}},
    "required": ["a long name", "kind"],
    "additionalProperties": False,
}

FEATURES: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0, "prompt_logprobs": 2, "logprobs": 0},
    {"top_p": 0.8, "top_k": 30},
    {"logprob_token_ids": [9, 5, 300], "repetition_penalty": 1.2},
    {"logprob_token_ids": [40, 6], "structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
    {"presence_penalty": 1.0, "frequency_penalty": -0.5, "repetition_penalty": 1.3},
    {"bad_words_token_ids": [[5, 6], [7], [40, 41, 42]], "logit_bias": {5: 6.0, 6: 6.0, 40: 5.0, 41: 5.0, 42: 5.0}},
    {"min_tokens": 6, "stop_token_ids": list(range(10, 60)), "logprobs": 1},
    {"stop_token_ids": list(range(10, 300))},
    {"allowed_token_ids": [5, 6, 7, 8, 9], "ignore_eos": True},
    {"max_tokens": 1},
    {"structured_outputs": {"regex": "[a-z]{3,9}( [a-z]{3,9}){2,40}"}},
    {"structured_outputs": {"json": SCHEMA}, "temperature": 0, "max_tokens": 60},
    {"structured_outputs": {"json": SCHEMA}, "logprobs": 2, "presence_penalty": 0.5, "max_tokens": 60},
    {
        "structured_outputs": {"choice": ["red", "green leaf", "a blue sky"]},
        "reasoning_end_token_ids": [40, 41],
        "thinking_token_budget": 7,
    },
    {"structured_outputs": {"json_object": True}, "bad_words_token_ids": [[5, 6]], "min_tokens": 4},
]


def mixed(prompts: Sequence[list[int]], kinds: Sequence[int], longest: int = 10_000) -> list[Request]:
    chosen = [prompt for prompt in prompts if len(prompt) <= longest]
    return [
        request(index, chosen[index], **{"max_tokens": 20 + index % 17, "seed": index, **FEATURES[kind]})
        for index, kind in enumerate(kinds)
    ]


@contextmanager
def synchronous(engine: Engine) -> Iterator[Engine]:
    """The same engine with the option off: compiling another takes long, and nothing else depends on it."""
    depth, engine._depth = engine._depth, 1
    yield engine
    engine._depth = depth


def assert_equal(left: dict[str, Answer], right: dict[str, Answer]) -> None:
    """Equal but for the last digits of log-probabilities, which depend on who else is in the batch."""
    assert left.keys() == right.keys()
    for name, answer in left.items():
        ours, theirs = astuple(answer), astuple(right[name])
        # Not what the cache had: a request with a grammar is admitted when that happens to be compiled.
        assert (ours[0], *ours[3:5]) == (theirs[0], *theirs[3:5]), name
        for mine, other in ((answer.logprobs, right[name].logprobs), both_prompts(answer, right[name])):
            assert [each.token_id for each in mine] == [each.token_id for each in other]
            assert [each.logprob for each in mine] == pytest.approx([each.logprob for each in other], abs=1e-4)
            # Of the most likely tokens, two may be so nearly alike that they change places.
            for ours, theirs in zip(mine, other, strict=True):
                assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-4)


def both_prompts(left: Answer, right: Answer) -> tuple[list[Any], list[Any]]:
    return (left.prompt_logprobs or [None])[1:], (right.prompt_logprobs or [None])[1:]


def test_on_and_off_agree_with_every_feature(engine: Engine, prompts: list[list[int]]) -> None:
    kinds = [index % len(FEATURES) for index in range(45)]
    assert engine._depth == 2, "on by default"
    assert engine.reset_prefix_cache()
    ahead = run(engine, mixed(prompts, kinds))
    with synchronous(engine):
        assert engine.reset_prefix_cache()
        assert_equal(ahead, run(engine, mixed(prompts, kinds)))
    assert {answer.finish_reason for answer in ahead.values()} == {"stop", "length"}


@pytest.fixture(scope="module")
def crowded() -> Iterator[Engine]:
    """An engine in which pages run out all the time."""
    engine = make_engine(
        max_model_len=96, block_size=4, num_gpu_blocks_override=26, max_num_batched_tokens=16, max_num_seqs=8
    )
    yield engine
    engine.close()


def test_on_and_off_agree_under_preemption(crowded: Engine, prompts: list[list[int]]) -> None:
    kinds = [index % len(FEATURES) for index in range(2 * len(FEATURES))]
    ahead = run(crowded, mixed(prompts, kinds, longest=24))
    preempted = crowded.scheduler.num_preemptions
    assert preempted > 5
    assert crowded.reset_prefix_cache()
    with synchronous(crowded):
        assert_equal(ahead, run(crowded, mixed(prompts, kinds, longest=24)))
    assert crowded.scheduler.num_preemptions > preempted + 5


def test_the_device_has_the_page_table_of_the_host(crowded: Engine, prompts: list[list[int]]) -> None:
    for each in mixed(prompts, [index % len(FEATURES) for index in range(18)], longest=24):
        crowded.add_request(each)
    table, compared = crowded.scheduler.table, 0
    while crowded.has_unfinished_requests():
        crowded.step()
        on_device = np.asarray(crowded.runner.calls.state.page_table)
        for slot in (each.slot for each in table.requests if each is not None):
            used = crowded.pages.pages_for(int(table.num_computed[slot]))
            assert np.array_equal(on_device[slot, :used], table.block_table[slot, :used])
            compared += used
    assert compared > 1000


def test_the_device_has_the_next_step_before_the_host_has_the_last(engine: Engine, prompts: list[list[int]]) -> None:
    engine.add_request(request("a", prompts[1], max_tokens=5, ignore_eos=True))
    engine.add_request(request("b", prompts[1], max_tokens=4, ignore_eos=True, bad_words_token_ids=[[5, 6]]))
    assert len(engine.step()) == 2
    assert len(engine._under_way) == 0, "what b must not say depends on what it said"
    assert [len(engine.step()) for _ in range(3)] == [2, 2, 2]
    assert len(engine._under_way) == 0
    (last,) = engine.step()
    assert last.finish_reason == "length"

    engine.add_request(request("c", prompts[1], max_tokens=5, ignore_eos=True))
    assert len(engine.step()) == 1
    assert len(engine._under_way) == 1
    assert [len(engine.step()) for _ in range(3)] == [1, 1, 1]
    assert len(engine._under_way) == 1
    (last,) = engine.step()
    assert last.finish_reason == "length"
    assert not engine._under_way, "no step is scheduled beyond a known length"
    assert engine.step() == []


def test_a_token_in_flight_is_never_shown(engine: Engine, prompts: list[list[int]]) -> None:
    """Requests that leave by a stop token, a stop string or an abort while a step with them is under way."""
    params = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    (full,) = run(engine, [request("full", prompts[3], **params)]).values()
    engine.add_request(request("other", prompts[4], max_tokens=12, ignore_eos=True))
    engine.add_request(request("token", prompts[3], **params, stop_token_ids=full.token_ids[2:3]))
    engine.add_request(request("string", prompts[3], **params))
    engine.add_request(request("abort", prompts[3], **params))
    seen: dict[str, list[int]] = {}
    for step in range(4):
        for output in engine.step():
            seen[output.request_id] = seen.get(output.request_id, []) + output.token_ids
        if step == 1:
            engine.finish_request("string", "END")
            engine.abort_request(["abort"])
            # The slot changes hands, and so does the name.
            engine.add_request(request("string", prompts[5], **params))
    first = full.token_ids.index(full.token_ids[2]) + 1
    assert seen["token"] == full.token_ids[:first]
    assert seen["abort"] == full.token_ids[:2]
    rest = run(engine, [])
    seen["string"] += rest["string"].token_ids
    (alone,) = run(engine, [request("alone", prompts[5], **params)]).values()
    assert seen["string"] == full.token_ids[:2] + alone.token_ids


def test_prompt_logprobs_of_an_aborted_request_do_not_reach_its_namesake(
    engine: Engine, prompts: list[list[int]]
) -> None:
    long, short = max(prompts, key=len), prompts[10]
    engine.add_request(request("keep", prompts[4], max_tokens=20, ignore_eos=True))
    engine.step()
    engine.add_request(request("name", long, max_tokens=3, prompt_logprobs=1))
    engine.step()
    engine.abort_request(["name"])
    answers = run(engine, [request("name", short, max_tokens=3, prompt_logprobs=1)])
    (alone,) = run(engine, [request("alone", short, max_tokens=3, prompt_logprobs=1)]).values()
    _, ours = both_prompts(alone, answers["name"])
    assert len(ours) == len(short) - 1
    theirs, _ = both_prompts(alone, alone)
    assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-4)
