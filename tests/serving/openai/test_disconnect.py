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
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_stops(server: ServerProcess, http: httpx.Client, path: str, body: Any, stream: bool) -> None:
    request = {**LONG, **body, "stream": stream}
    before = generated(http)
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as leaving:
        if stream:
            with leaving.stream("POST", path, json=request) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post(path, json=request, timeout=httpx.Timeout(60, read=0.3))
    until(lambda: http.get("/load").json() == {"server_load": 0})
    until(lambda: running(http) == 0)
    stopped_at = generated(http)
    assert stopped_at - before < 8 * 200, "it has generated everything"
    time.sleep(0.2)
    assert generated(http) == stopped_at


def running(http: httpx.Client) -> float:
    (line,) = [
        line for line in http.get("/metrics").text.splitlines() if line.startswith("jaxllm:num_requests_running{")
    ]
    return float(line.split()[-1])
