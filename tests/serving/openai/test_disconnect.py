"""Clients that leave: their requests end at once."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess

LONG = {"max_tokens": 240, "ignore_eos": True, "n": 8, "seed": 1}


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def generated(http: httpx.Client) -> int:
    lines = http.get("/metrics").text.splitlines()
    return round(sum(float(line.split()[-1]) for line in lines if line.startswith("jaxllm:generation_tokens_total")))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/completions", {"prompt": ["hello", "there"], "n": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 200}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 240, "max_tokens": None, "n": None}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 200, "n": None}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_stops(server: ServerProcess, http: httpx.Client, path: str, body: Any, stream: bool) -> None:
    request = {name: value for name, value in {**LONG, **body, "stream": stream}.items() if value is not None}
    most = 200 * request.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)
    before = generated(http)
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as leaving:
        if stream:
            with leaving.stream("POST", path, json=request) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post(path, json=request, timeout=httpx.Timeout(60, read=0.1 if most > 240 else 0.05))
    until(lambda: http.get("/load").json() == {"server_load": 0})
    until(lambda: running(http) == 0)
    stopped_at = generated(http)
    assert stopped_at - before < most, "it has generated everything"
    time.sleep(0.2)
    assert generated(http) == stopped_at


def running(http: httpx.Client) -> float:
    (line,) = [
        line for line in http.get("/metrics").text.splitlines() if line.startswith("jaxllm:num_requests_running{")
    ]
    return float(line.split()[-1])
