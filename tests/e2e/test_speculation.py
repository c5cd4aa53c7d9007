"""Drafts change no token: whoever makes them, however many are right, and whatever else a request asks for."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from jaxllm.engine.engine import Engine
from jaxllm.engine.features import speculation
from jaxllm.requests.request import Request
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.amounts import StepLoad
from tests.e2e.driving import Answer, make_engine, request, run

NUM_REQUESTS = 48
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "logprobs": 2},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    {"temperature": 0, "repetition_penalty": 1.3, "logprobs": 3},
    {"temperature": 0.9, "min_tokens": 9, "logit_bias": {5: 2.0}},
    {"temperature": 0.7, "bad_words_token_ids": [[319, 404], [203]], "logprobs": 1},
    {"temperature": 0.7, "structured_outputs": {"regex": "[a-z ]{3,40}"}},
    {"temperature": 0.5, "logprob_token_ids": [5, 300, 7]},
    {"temperature": 0.6, "prompt_logprobs": 1, "stop_token_ids": [203, 18]},
    {"temperature": 1.0, "speculative_tokens": 2},
    {"temperature": 1.0, "speculative_tokens": 0},
]


def requests(prompts: list[list[int]], indices: Any = range(NUM_REQUESTS)) -> list[Request]:
    return [
        request(i, prompts[i], **KINDS[i % len(KINDS)], seed=1000 + i, max_tokens=24, ignore_eos=bool(i % 2))
        for i in indices
    ]


def said(answers: dict[str, Answer]) -> dict[str, Answer]:
    """Answers but for what was in the prefix cache."""
    return {name: replace(answer, num_cached_tokens=0) for name, answer in answers.items()}


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in answers.items()}


class ScriptedDrafter:
    """Knows the outputs, and says of them what it is told to."""

    def __init__(self, answers: dict[str, Answer], kind: str) -> None:
        self._answers, self._kind = answers, kind
        self._rng = np.random.default_rng(0)

    def propose(self, table: RequestTable, slots: Any, limits: Any) -> tuple[Any, Any]:
        drafts = [self._drafts(table, *each) for each in zip(slots.tolist(), limits.tolist(), strict=True)]
        ids = [token for own in drafts for token in own]
        return np.array([len(own) for own in drafts], np.int32), np.array(ids, np.int32)

    def forget(self, request: Request) -> None:
        pass

    def _drafts(self, table: RequestTable, slot: int, limit: int) -> list[int]:
        held = table.requests[slot]
        assert held is not None
        done = int(table.num_tokens[slot] - table.num_prompt_tokens[slot])
        right = self._answers[held.request_id].token_ids[done : done + limit]
        wrong = self._rng.integers(5, 900, limit).tolist()
        if self._kind == "right":
            return [*right, *wrong[len(right) :]]  # past the end as well
        if self._kind == "wrong":
            return wrong
        some = [token if self._rng.random() < 0.8 else other for token, other in zip(right, wrong, strict=False)]
        return some[: int(self._rng.integers(0, limit + 1))]


def all_of_them(counts: Any, chances: Any, costs: Any, load: StepLoad) -> Any:
    """As many drafts as fit the step."""
    room = load.max_tokens - load.num_tokens - (np.cumsum(counts) - counts)
    return np.minimum(counts, np.maximum(room, 0)).astype(np.int32)


@pytest.fixture(scope="module")
def answers(engine: Engine, prompts: list[list[int]]) -> dict[str, Answer]:
    """Without drafts."""
    engine.reset_prefix_cache()
    return run(engine, requests(prompts))


@pytest.fixture(scope="module")
def drafting() -> Iterator[Engine]:
    """An engine like `engine`, with drafts."""
    made = make_engine(max_num_seqs=64, spec_method="ngram", num_speculative_tokens=5)
    yield made
    made.close()


def script(engine: Engine, answers: dict[str, Answer], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this engine have scripted drafts, and as many as fit."""
    assert engine._speculation is not None
    monkeypatch.setattr(engine._speculation, "_drafter", ScriptedDrafter(answers, kind))
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)


@pytest.mark.parametrize("kind", ["right", "wrong", "mixed"])
def test_all_that_requests_get_is_the_same(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(drafting, answers, kind, monkeypatch)
    before = drafting.stats().drafts
    drafting.reset_prefix_cache()
    assert said(run(drafting, requests(prompts))) == said(answers)
    drafts = drafting.stats().drafts.since(before)
    assert drafts.num_draft_tokens > 300
    rate = drafts.num_accepted_tokens / drafts.num_draft_tokens
    assert {"right": rate > 0.8, "wrong": rate < 0.1, "mixed": 0.3 < rate < 0.9}[kind]
    for index in range(0, NUM_REQUESTS, 7):
        drafting.reset_prefix_cache()
        assert said(run(drafting, requests(prompts, [index]))) == said({str(index): answers[str(index)]})


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"num_speculative_tokens": 1}, marks=pytest.mark.exhaustive, id="one"),
        pytest.param({"num_speculative_tokens": 8, "block_size": 4}, id="beyond a page"),
    ],
)
def test_with_preemption_small_chunks_and_pages_that_drafts_go_beyond(
    answers: dict[str, Answer], prompts: list[list[int]], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(
        max_model_len=512, num_gpu_blocks_override=130, max_num_batched_tokens=64, max_num_seqs=16,
        spec_method="ngram", **{"block_size": 4, **options},
    )  # fmt: skip
    try:
        script(engine, answers, "mixed", monkeypatch)
        found = run(engine, requests(prompts))
        assert tokens(found) == tokens(answers)
        assert engine.scheduler.num_preemptions
        assert engine.stats().drafts.num_accepted_tokens > 20
    finally:
        engine.close()


def test_pages_that_others_find_hold_accepted_tokens_only(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(drafting, answers, "mixed", monkeypatch)
    drafting.reset_prefix_cache()
    indices = range(0, NUM_REQUESTS, 12)
    run(drafting, requests(prompts, indices))
    longer = [[*prompts[i], *answers[str(i)].token_ids] for i in indices]
    hits = drafting.pages.prefix_hits
    warm = run(drafting, [request(i, own, temperature=0, max_tokens=8) for i, own in enumerate(longer)])
    assert drafting.pages.prefix_hits > hits
    drafting.reset_prefix_cache()
    cold = run(drafting, [request(i, own, temperature=0, max_tokens=8) for i, own in enumerate(longer)])
    assert tokens(warm) == tokens(cold)


def test_requests_that_end_while_their_drafts_are_under_way(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(drafting, answers, "mixed", monkeypatch)
    for each in requests(prompts):
        drafting.add_request(each)
    found: dict[str, list[int]] = {}
    steps = 0
    while drafting.has_unfinished_requests():
        steps += 1
        if steps % 3 == 0:
            drafting.abort_request(str(steps))
        for output in drafting.step():
            found.setdefault(output.request_id, []).extend(output.token_ids)
    assert drafting.pages.num_held_pages == 0
    drafting.scheduler.check_integrity()
    for name, some in found.items():
        assert answers[name].token_ids[: len(some)] == some


def test_a_drafter_that_fails_costs_nobody_a_token(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    class Broken:
        def propose(self, *_: Any) -> Any:
            raise ValueError("out of ideas")

        def forget(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(drafting._speculation, "_drafter", Broken())
    drafting.reset_prefix_cache()
    assert said(run(drafting, requests(prompts))) == said(answers)
    assert "get no more drafts: Broken failed" in caplog.text


def test_a_text_that_repeats_takes_fewer_steps(
    drafting: Engine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether that saves time is another question, which depends on the machine.
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    cycle = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "allowed_token_ids": [100, 101]}

    def steps(own: Engine) -> tuple[list[int], int]:
        own.add_request(request("r", [100, 101] * 20, **cycle))
        found, count = [], 0
        while own.has_unfinished_requests():
            for output in own.step():
                found += output.token_ids
            count += 1
        return found, count

    (without, many), (with_drafts, few) = steps(engine), steps(drafting)
    assert with_drafts == without
    assert few < 0.8 * many


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "method"),
    [
        ("cpu", "ngram"),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in (("xla", "ngram"), ("cpu", "draft_model"))),
    ],
)
def test_windows_whose_pages_are_given_back(
    tmp_path_factory: pytest.TempPathFactory, attention: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=256, initializer_range=0.5, sliding_window=20, num_hidden_layers=3,
        use_sliding_window=True, layer_types=types,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("windows")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(3, 128, int(length)).tolist() for length in rng.integers(1, 90, 6)]
    asked = [{"temperature": index % 2, "seed": index, "max_tokens": 60, "ignore_eos": True} for index in range(6)]
    options: dict[str, Any] = {
        "model": str(folder), "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 32, "dtype": "float32",
        "attention_backend": attention, "num_gpu_blocks_override": 60,
    }  # fmt: skip
    found: list[dict[str, Answer]] = []
    drafts: dict[str, Any] = {"spec_method": method, "num_speculative_tokens": 6}
    if method == "draft_model":
        # The model drafts for itself.
        drafts["speculative_model"] = str(folder)
    for speculation_options in ({}, drafts):
        engine = make_engine(**options, **speculation_options)
        try:
            if found and method == "ngram":
                script(engine, found[0], "mixed", monkeypatch)
            monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
            found.append(run(engine, [request(i, own, **asked[i]) for i, own in enumerate(drawn)]))
            if len(found) == 2:
                assert engine.stats().drafts.num_accepted_tokens > 20
        finally:
            engine.close()
    assert tokens(found[1]) == tokens(found[0])


def test_a_prediction_is_followed_and_left_and_followed_again(
    drafting: Engine, answers: dict[str, Answer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    index, params = 13, KINDS[1]
    right = answers[str(index)].token_ids
    predicted = [*right[:8], 900, 901, *right[10:]]
    before = drafting.stats().drafts
    asked = request(index, prompts[index], **params, seed=1000 + index, max_tokens=24, ignore_eos=True,
                    predicted_token_ids=np.array(predicted, np.int32).tobytes())  # fmt: skip
    found = run(drafting, [asked])
    assert found[str(index)].token_ids == right
    assert drafting.stats().drafts.since(before).num_accepted_tokens >= 12


def test_what_was_answered_once_is_guessed_the_next_time(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    made = make_engine(max_num_seqs=8, speculative_config={"method": "suffix", "num_speculative_tokens": 6})
    try:
        asked = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
        first = tokens(run(made, [request("a", prompts[3], **asked)]))["a"]
        before = made.stats().drafts
        assert tokens(run(made, [request("b", prompts[3], **asked)]))["b"] == first
        assert made.stats().drafts.since(before).num_accepted_tokens > 25
        assert tokens(run(engine, [request("c", prompts[3], **asked)]))["c"] == first
    finally:
        made.close()
