"""Sound in, tokens out: those of transformers, whatever else is in the batch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions
from tests.conftest import RunPython
from tests.e2e.driving import make_engine, request, run
from tests.e2e.sound.hearing import expected, expected_logits, reference_in, save_small_model
from tests.e2e.sound.windows import VOCABULARY, hearing, window


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hearing")
    save_small_model(found)
    return found


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    """Small enough for chunks and preemption: 10 pages of 16 tokens, chunks of at most 8, and 3 windows."""
    made = make_engine(
        model=str(folder), max_model_len=80, max_num_seqs=4, max_num_batched_tokens=8, num_gpu_blocks_override=11,
        sound_windows=3, enforce_eager=False,
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return reference_in(folder)


def test_one_window(engine: Engine, reference: Any) -> None:
    found = run(engine, [hearing("one", window(0), [1, 5, 7], max_tokens=12)])
    assert found["one"].token_ids == expected(reference, window(0), [1, 5, 7], 12)


def test_another_window_gives_other_tokens(engine: Engine) -> None:
    found = run(engine, [hearing(seed, window(seed), [1, 5], max_tokens=8) for seed in range(6)])
    assert len({tuple(answer.token_ids) for answer in found.values()}) == 6


def test_many_at_once_equal_each_alone(engine: Engine, reference: Any) -> None:
    """Prompts in chunks, more windows than there are places, and fewer pages than all need."""
    before = engine.scheduler.num_preemptions
    drawn = np.random.default_rng(2)
    prompts = [[1, *drawn.integers(3, VOCABULARY, length).tolist()] for length in (2, 19, 5, 30, 11, 2, 27, 3)]
    requests = [hearing(i, window(i % 5), prompt, max_tokens=40) for i, prompt in enumerate(prompts)]
    found = run(engine, requests)
    for i, prompt in enumerate(prompts):
        assert found[str(i)].token_ids == expected(reference, window(i % 5), prompt, 40), i
    assert engine.scheduler.num_preemptions > before
    assert engine.media is not None
    engine.media.pool.check_integrity()


def test_a_window_is_encoded_once(engine: Engine, reference: Any) -> None:
    assert engine.media is not None
    pool = engine.media.pool
    before = pool.num_queries, pool.num_hits
    requests = [hearing(i, window(20), [1, 5 + i], max_tokens=6) for i in range(4)]
    found = run(engine, requests)
    assert pool.num_queries - before[0] == 4
    assert pool.num_hits - before[1] == 3
    for i in range(4):
        assert found[str(i)].token_ids == expected(reference, window(20), [1, 5 + i], 6)


def test_prefixes_are_shared_by_the_same_window(engine: Engine, reference: Any) -> None:
    prompt = [1, *range(20, 40)]
    for name, seed, cached in (("a", 30, 0), ("b", 31, 0), ("c", 30, 16)):
        answer = run(engine, [hearing(name, window(seed), prompt, max_tokens=4)])[name]
        assert answer.token_ids == expected(reference, window(seed), prompt, 4)
        assert answer.num_cached_tokens == cached


def test_logprobs(engine: Engine, reference: Any) -> None:
    prompt = [1, 9, 33, 60, 4, 77, 12, 13, 14, 15, 16]
    made = hearing("one", window(40), prompt, max_tokens=4, logprobs=0, prompt_logprobs=0)
    answer = run(engine, [made])["one"]
    every = prompt + answer.token_ids
    logits = expected_logits(reference, window(40), every).astype(np.float64)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert answer.prompt_logprobs is not None
    given = [*answer.prompt_logprobs[1:], *answer.logprobs]
    for place, (entry, token) in enumerate(zip(given, every[1:], strict=True)):
        assert entry is not None
        assert abs(entry.logprob - wanted[place, token]) < 1e-4


def test_beams(engine: Engine, reference: Any) -> None:
    made = hearing("beams", window(50), [1, 5], max_tokens=6, beam_search=BeamOptions(width=3, n=3))
    others = [hearing(i, window(51 + i), [1, 5], max_tokens=10) for i in range(2)]
    sequences = run(engine, [made, *others])["beams"].sequences
    assert sequences is not None
    assert len(sequences) == 3
    tokens = list(sequences[0].token_ids)
    logits = expected_logits(reference, window(50), [1, 5, *tokens]).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    total = sum(logprobs[1 + place, token] for place, token in enumerate(tokens))
    assert abs(sequences[0].cumulative_logprob - total) < 1e-3


def test_an_aborted_request_leaves_nothing(engine: Engine) -> None:
    assert engine.media is not None
    engine.add_request(hearing("gone", window(60), [1, 3], max_tokens=4))
    engine.step()
    engine.abort_request("gone")
    engine.step()
    assert not engine.has_unfinished_requests()
    engine.media.pool.check_integrity()
    found = run(engine, [hearing(i, window(61 + i), [1, 3], max_tokens=4) for i in range(3)])
    assert [len(answer.token_ids) for answer in found.values()] == [4, 4, 4]


WITHOUT_END = np.where(np.arange(80) == 79, np.inf, window(0)).astype(np.float32)


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        (None, "this model needs sound"),
        (window(0)[:, :-1], r"expected log-mel features float32 \[16 x 80\], got float32 \[16 x 79\]"),
        (window(0).astype(np.float64), "got float64"),
        (WITHOUT_END, "must be finite"),
    ],
)
def test_requests_without_the_sound_that_it_takes(engine: Engine, features: Any, problem: str) -> None:
    made = request("bad", [1, 2]) if features is None else hearing("bad", features, [1, 2])
    with pytest.raises(RequestError, match=problem):
        engine.add_request(made)


def test_several_devices(folder: Path, reference: Any, run_python: RunPython) -> None:
    script = str(Path(__file__).with_name("hear_on_devices.py"))
    done = run_python(script, str(folder), "data=2", "model=2", env={"PYTHONPATH": "."}, devices=2, timeout=900)
    assert done.returncode == 0, done.stderr
    wanted = [expected(reference, window(seed), [1, 5, 9], 12) for seed in range(6)]
    for line in done.stdout.splitlines():
        assert json.loads(line) == wanted


def test_sleep(folder: Path, reference: Any) -> None:
    engine = make_engine(model=str(folder), max_model_len=64, max_num_seqs=2, enable_sleep_mode=True)
    wanted = expected(reference, window(70), [1, 5], 6)
    assert run(engine, [hearing("before", window(70), [1, 5], max_tokens=6)])["before"].token_ids == wanted
    for level in (1, 2):
        engine.control.sleep(level)
        engine.control.wake_up()
        assert run(engine, [hearing(level, window(70), [1, 5], max_tokens=6)])[str(level)].token_ids == wanted
    assert engine.media is not None
    assert (engine.media.pool.num_queries, engine.media.pool.num_hits) == (3, 0)
    engine.close()
