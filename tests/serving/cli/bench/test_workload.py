from pathlib import Path

import numpy as np
import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.cli.bench.workload import LoadRequest, random_requests, read_requests, send_times


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_random_prompts_have_the_lengths_asked_for() -> None:
    requests = random_requests(20, 7, 5, 0.0, range(10, 20), rng())
    assert {len(request.prompt) for request in requests} == {7}
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(7, 5)}
    assert {token for request in requests for token in request.prompt} == set(range(10, 20))


def test_random_lengths_vary_by_the_ratio() -> None:
    requests = random_requests(500, 100, 10, 0.5, [1], rng())
    lengths = {request.prompt_tokens for request in requests}
    assert (min(lengths), max(lengths)) == (50, 150)
    assert {request.output_tokens for request in requests} == set(range(5, 16))


def test_same_seed_same_prompts() -> None:
    def make(seed: int) -> list[LoadRequest]:
        return random_requests(3, 8, 4, 0.5, range(100), rng(seed))

    assert make(1) == make(1) != make(2)


def test_random_text() -> None:
    (request,) = random_requests(1, 3, 1, 0.0, [7], rng(), decode=lambda tokens: "-".join(map(str, tokens)))
    assert request == LoadRequest("7-7-7", 1, 3)


def test_prompts_of_a_text_file_are_used_again(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\u2028still two\n")
    requests = read_requests(str(file), 4, 9, rng())
    assert sorted(request.prompt for request in requests) == ["one", "one", "two\u2028still two", "two\u2028still two"]
    assert {request.output_tokens for request in requests} == {9}


def test_prompts_of_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    message = {"role": "user", "content": "hi"}
    file.write_text('{"prompt": "a", "output_tokens": 3}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    requests = read_requests(str(file), 2, 9, rng())
    assert LoadRequest("a", 3) in requests
    assert LoadRequest([message], 9) in requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "holds no prompts"),
        ("{}", "line 1: expected an object with"),
        ('{"prompt": "a"}\n{', "line 2: not valid"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_requests(str(file), 1, 1, rng())


def test_absent_file() -> None:
    with pytest.raises(ConfigError, match="cannot read --dataset-path"):
        read_requests("absent", 1, 1, rng())


def test_all_at_once() -> None:
    assert send_times(3, float("inf"), 1.0, rng()) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 50.0])
def test_times_follow_rate_and_burstiness(burstiness: float) -> None:
    times = np.array(send_times(5000, 10.0, burstiness, rng()))
    gaps = np.diff(times, prepend=0.0)
    assert times[-1] == pytest.approx(500.0)
    assert gaps.min() >= 0
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)
