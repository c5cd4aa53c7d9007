"""Recurrent layers cannot take back a token, but drafts change none that requests get: of no family, nor in any way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from tests.e2e.driving import Answer, make_engine, request, run
from tests.e2e.test_speculation import script, tokens
from tests.models.every_family import FAMILIES
from tests.models.test_recurrent_families import CASES

NAMES = (*CASES, "lfm2", "lfm2_moe")
TRIED, SAME, PREEMPTED = ("mamba2", "qwen3_next"), ("qwen3_next",), ("mamba2",)
PAGE, NUM_REQUESTS = 4, 6
SEEDS = (0, 1, 12, 3, 4, 5)
"""With these no draw of the families below falls between two tokens, where the last bits of products decide."""
OPTIONS: dict[str, Any] = {
    "block_size": PAGE, "max_num_seqs": NUM_REQUESTS, "max_num_batched_tokens": 128, "max_model_len": 160,
    "dtype": "float32", "num_gpu_blocks_override": 400, "max_state_snapshots": 64,
    "mamba_block_size": 12,
}  # fmt: skip
DRAFTS: dict[str, Any] = {"spec_method": "ngram", "num_speculative_tokens": 5}


def requests() -> list[Request]:
    """Prompts that fit one step together: all that follows are decodes."""
    rng = np.random.default_rng(0)
    lengths = (1, 9, 23, 40, 30, 17)
    kinds: list[dict[str, Any]] = [{"temperature": 0, "logprobs": 2}, {"temperature": 1.0, "logprobs": 1}]
    kinds.append({"temperature": 0.8, "presence_penalty": 0.5})
    shared = rng.integers(3, 60, 40).tolist()
    prompts = [[*shared[: length // 2], *rng.integers(3, 60, length - length // 2).tolist()] for length in lengths]
    return [
        request(index, prompt, **kinds[index % 3], seed=SEEDS[index], max_tokens=40, ignore_eos=True)
        for index, prompt in enumerate(prompts)
    ]


def logprobs(answer: Answer) -> list[float]:
    return [each.logprob for each in answer.logprobs]


def marked(name: str, tried: tuple[str, ...] = TRIED) -> Any:
    """One family with a state and one with a matrix, both with a window, are tried always; others by hand.

    `tests/pallas_kernels/recurrence/test_drafts.py` compares what is kept of drafts in every recurrence.
    """
    return name if name in tried else pytest.param(name, marks=pytest.mark.exhaustive)


@pytest.fixture(scope="module", params=[marked(name) for name in NAMES])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    FAMILIES[request.param].save(made, max_position_embeddings=256)
    return made


@pytest.fixture(scope="module")
def answers(folder: Path) -> Iterator[dict[str, Answer]]:
    """Without drafts."""
    # With the same chunks of prompts, whose numbers of tokens change the last bits of products.
    engine = make_engine(model=str(folder), **OPTIONS)
    found = run(engine, requests())
    for each in requests():
        # Some draws, and choices of experts, are decided by the last bits, which change with the neighbours.
        engine.reset_prefix_cache()
        if tokens(run(engine, [each])) != {each.request_id: found[each.request_id].token_ids}:
            del found[each.request_id]
    assert len(found) >= NUM_REQUESTS - 1
    yield found
    engine.close()


def asked(answers: dict[str, Answer]) -> list[Request]:
    """The requests of these answers."""
    return [each for each in requests() if each.request_id in answers]


def make(folder: Path, **options: Any) -> Engine:
    return make_engine(model=str(folder), **{**OPTIONS, **DRAFTS, **options})


def check_continued(engine: Engine, answers: dict[str, Answer]) -> None:
    """Requests that go on where others have ended begin with snapshots that steps with drafts have made."""
    greedy = [each for each in asked(answers) if not each.params.temperature]
    longer = [[*each.prompt_token_ids.tolist(), *answers[each.request_id].token_ids[:30]] for each in greedy]
    found = run(engine, [request(index, prompt, temperature=0, max_tokens=9) for index, prompt in enumerate(longer)])
    for answer, each, prompt in zip(found.values(), greedy, longer, strict=True):
        assert answer.token_ids == answers[each.request_id].token_ids[30:39]
        assert answer.num_cached_tokens == (len(prompt) - 1) // 12 * 12


@pytest.mark.parametrize("folder", [marked(name, SAME) for name in NAMES], indirect=True, scope="module")
def test_all_that_requests_get_is_the_same(
    folder: Path, answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({token for answer in answers.values() for token in answer.token_ids}) > 20
    engine = make(folder)
    try:
        for kind in ("right", "wrong", "mixed"):
            before = engine.stats().drafts
            script(engine, answers, kind, monkeypatch)
            found = run(engine, asked(answers))
            assert tokens(found) == tokens(answers)
            for name, answer in answers.items():
                # XLA multiplies other numbers of rows in other ways: a product's last bits are not the same.
                assert np.allclose(logprobs(found[name]), logprobs(answer), atol=1e-4)
            drafts = engine.stats().drafts.since(before)
            assert drafts.num_draft_tokens > 100
            rate = drafts.num_accepted_tokens / drafts.num_draft_tokens
            assert {"right": rate > 0.8, "wrong": rate < 0.1, "mixed": 0.3 < rate < 0.9}[kind]
            check_continued(engine, answers)
            engine.reset_prefix_cache()
    finally:
        engine.close()


# Pages and snapshots are managed alike for all.
@pytest.mark.parametrize("folder", [marked(name, PREEMPTED) for name in NAMES], indirect=True, scope="module")
def test_with_preemption_chunks_and_snapshots(
    folder: Path, answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(folder, num_gpu_blocks_override=48, max_num_batched_tokens=24, max_state_snapshots=8)
    try:
        script(engine, answers, "mixed", monkeypatch)
        for _ in range(3):
            assert tokens(run(engine, asked(answers))) == tokens(answers)
        assert engine.scheduler.num_preemptions > 1
        assert engine.pages.prefix_hits > 20
        assert engine.stats().drafts.num_accepted_tokens > 100
    finally:
        engine.close()


# CI has drafts on several devices in `parallel/test_drafts.py`, and states in `test_recurrent_states.py`.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*TRIED, "lfm2"])
def test_devices_share_what_is_kept_of_drafts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES[name].save(tmp_path, max_position_embeddings=256)
    found: list[dict[str, Answer]] = []
    for options in ({}, DRAFTS):
        engine = make_engine(model=str(tmp_path), **{**OPTIONS, **options}, tensor_parallel_size=2)
        try:
            if found:
                script(engine, found[0], "mixed", monkeypatch)
            found.append(run(engine, requests()))
            if len(found) == 2:
                assert engine.stats().drafts.num_accepted_tokens > 50
                assert tokens(found[1]) == tokens(found[0])
        finally:
            engine.close()
