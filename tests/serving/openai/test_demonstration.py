"""`/generate`, as the client of vLLM's demonstration server uses it."""

import itertools
import json
from typing import Any

import httpx
import pytest

PROMPT = "Once upon a time"
ASKED: dict[str, Any] = {"prompt": PROMPT, "temperature": 0.0, "max_tokens": 16}


@pytest.mark.parametrize("more", [{}, {"use_beam_search": True, "n": 3}, {"n": 2, "temperature": 1.0, "seed": 1}])
def test_texts_begin_with_the_prompt(http: httpx.Client, more: dict[str, Any]) -> None:
    texts = http.post("/generate", json={**ASKED, **more, "stream": False}).json()["text"]
    wanted = http.post("/v1/completions", json={**ASKED, **more}).json()["choices"]
    assert texts == [PROMPT + choice["text"] for choice in wanted]


def test_a_stream_has_lines_of_whole_texts(http: httpx.Client) -> None:
    # Long: what a busy machine has not sent yet comes together in one line.
    asked = {**ASKED, "n": 2, "temperature": 1.0, "seed": 1, "max_tokens": 200, "ignore_eos": True}
    with http.stream("POST", "/generate", json={**asked, "stream": True}) as response:
        lines = [json.loads(line) for line in response.iter_lines()]
    assert len(lines) > 1
    assert all(len(line["text"]) == 2 for line in lines)
    for earlier, later in itertools.pairwise(lines):
        assert all(new.startswith(old) for old, new in zip(earlier["text"], later["text"], strict=True))
    assert lines[-1] == http.post("/generate", json=asked).json()


@pytest.mark.parametrize(
    ("change", "field"),
    [({"prompt": ["a", "b"]}, "prompt"), ({"logprobs": 1}, "logprobs"), ({"temprature": 1}, "temprature"),
     ({"max_tokens": -1}, "max_tokens"), ({"n": 17, "stream": True}, "n"),
     ({"n": 2, "prompt": "a" * (2**19 + 1), "stream": True}, "n"), ({"n": 2, "prompt": "a" * (2**19 + 1)}, "n")],
)  # fmt: skip
def test_errors(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    response = http.post("/generate", json={**ASKED, **change})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
