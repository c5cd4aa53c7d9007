"""Drafts change no token of requests whose outputs follow a grammar, either."""

from collections.abc import Iterator
from typing import Any

import pytest

from jaxllm.engine.engine import Engine
from jaxllm.engine.features import speculation
from jaxllm.requests.request import Request
from tests.e2e.driving import Answer, make_engine, request, run
from tests.e2e.test_speculation import ScriptedDrafter, all_of_them, said

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["alpha", "beta"]},
                   "count": {"type": "integer"}},
    "required": ["name", "kind", "count"], "additionalProperties": False,
}  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {"structured_outputs": {"json": SCHEMA}, "temperature": 0.8},
    {"structured_outputs": {"json": SCHEMA}, "temperature": 1.0, "logprobs": 2},
    {"structured_outputs": {"regex": "[a-z ]{3,40}"}, "temperature": 0.7, "ignore_eos": True},
    {"structured_outputs": {"choice": ["yes, of course", "yes, perhaps", "no"]}, "temperature": 1.0},
    {"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}( and [0-9]{4}){0,5}"}, "logit_bias": {20: 2.0}},
    {"structured_outputs": {"regex": "(ab|cd)*"}, "min_tokens": 6, "temperature": 0.9},
    {"structured_outputs": {"regex": "[a-z]{9,30}"}, "frequency_penalty": 0.4},
    {"temperature": 0.9, "logprobs": 1},
]


def requests(prompts: list[list[int]], indices: Any = range(24)) -> list[Request]:
    return [request(i, prompts[i], **{"max_tokens": 40, **KINDS[i % len(KINDS)]}, seed=500 + i) for i in indices]


@pytest.fixture(scope="module")
def answers(engine: Engine, prompts: list[list[int]]) -> dict[str, Answer]:
    """Without drafts."""
    engine.reset_prefix_cache()
    return run(engine, requests(prompts))


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.exhaustive), 6])
def drafting(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(max_num_seqs=64, spec_method="ngram", num_speculative_tokens=request.param, block_size=16)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["right", "wrong", "mixed"])
def test_all_that_requests_get_is_the_same(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drafting._speculation is not None
    monkeypatch.setattr(drafting._speculation, "_drafter", ScriptedDrafter(answers, kind))
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    drafting.reset_prefix_cache()
    assert said(run(drafting, requests(prompts))) == said(answers)
    before = drafting.stats().drafts
    for index in range(6):
        drafting.reset_prefix_cache()
        assert said(run(drafting, requests(prompts, [index]))) == said({str(index): answers[str(index)]})
    drafts = drafting.stats().drafts.since(before)
    assert drafts.num_draft_tokens > 10
    assert kind != "right" or drafts.num_accepted_tokens > 15
    drafting.scheduler.check_integrity()
    assert drafting.pages.num_held_pages == 0


def test_a_failure_after_a_guess_costs_nobody_a_token(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drafting._speculation is not None
    monkeypatch.setattr(drafting._speculation, "_drafter", ScriptedDrafter(answers, "right"))
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    drafts = drafting._speculation._constrained._drafts
    calls = []

    def fails(branches: list[Any]) -> Any:
        calls.append(len(branches))
        return fill(branches) if len(calls) % 2 else (fill(branches)[0], ["too complex"] * len(branches))

    fill = drafts._fill
    monkeypatch.setattr(drafts, "_fill", fails)
    drafting.reset_prefix_cache()
    assert said(run(drafting, requests(prompts))) == said(answers)
    assert len(calls) > 4
