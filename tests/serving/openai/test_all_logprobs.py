"""Log-probabilities of the whole vocabulary, on a server that is started for it."""

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from jaxllm.serving.text.tokenizer import Tokenizer
from tests.serving.server_process import SMALL, running


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, "demo", *SMALL, "--max-logprobs=-1") as process:
        with httpx.Client(base_url=process.url, timeout=120) as client:
            yield client
        metrics = httpx.get(f"{process.url}/metrics").text
        assert 'compilations_after_warmup_total{engine="0",model_name="demo"} 0.0' in metrics


def test_all_alternatives(http: httpx.Client, demo_folder: str) -> None:
    size = len(Tokenizer.load(demo_folder).hf)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "logprobs": True, "seed": 1}
    (choice,) = http.post("/v1/chat/completions", json={**body, "top_logprobs": -1}).json()["choices"]
    for token in choice["logprobs"]["content"]:
        logprobs = [each["logprob"] for each in token["top_logprobs"]]
        assert len(logprobs) >= size
        assert logprobs == sorted(logprobs, reverse=True)
        assert abs(np.exp(logprobs).sum() - 1) < 1e-4
        assert token["logprob"] in logprobs
    (few,) = http.post("/v1/chat/completions", json={**body, "top_logprobs": 3}).json()["choices"]
    for all_of, some in zip(choice["logprobs"]["content"], few["logprobs"]["content"], strict=True):
        assert some["top_logprobs"] == all_of["top_logprobs"][:3]


def test_all_alternatives_of_a_prompt(http: httpx.Client) -> None:
    body = {"prompt": "Once upon", "max_tokens": 1, "prompt_logprobs": -1, "logprobs": -1}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    for each in rest:
        assert abs(np.exp([value["logprob"] for value in each.values()]).sum() - 1) < 1e-4
