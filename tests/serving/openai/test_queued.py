"""Streams that wait, on a server whose engine is paused: comments keep them alive, and long prompts are limited."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.serving.server_process import SMALL, ServerProcess, running

COMMENT = ": keep-alive"
INTERVAL = 0.4
MOST = 40
SECRETS = ("VLLM_API_KEYS", "JAXLLM_ADMIN_TOKENS", "VLLM_HTTP_AUTH")
"""Variables of nobody: what they hold is not known."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log: Path = tmp_path_factory.mktemp("server") / "log"
    flags = ("--server-dev-mode", f"--sse-keep-alive-interval={INTERVAL}", f"--max-num-queued-tokens={MOST}")
    environment = dict.fromkeys(SECRETS, "sekret") | {"VLLM_NO_USAGE_STATS": "1"}
    with running(log, *SMALL, *flags, environment=environment) as process:
        yield process


@pytest.fixture
def paused(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.post("/pause?mode=keep").raise_for_status()
        yield client
        client.post("/resume").raise_for_status()


def resume_later(client: httpx.Client, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, lambda: client.post("/resume"))
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once upon", "max_tokens": 4, "stream": True}),
        ("/v1/completions", {"prompt": ["Once", "upon"], "max_tokens": 4, "stream": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "stream": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "stream": True, "background": True}),
    ],
)
def test_comments_come_while_nothing_else_does(paused: httpx.Client, path: str, body: dict[str, Any]) -> None:
    resume_later(paused, 4 * INTERVAL)
    with paused.stream("POST", path, json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    comments = [line for line in lines if line.startswith(":")]
    assert set(comments) == {COMMENT}
    # Eight, on a machine that has nothing else to do.
    assert len(comments) >= 3
    events = [line for line in lines if line.startswith("data: {")]
    assert events
    assert all(json.loads(line.removeprefix("data: ")) for line in events)


def test_openais_client_leaves_them_out(paused: httpx.Client, server: ServerProcess) -> None:
    resume_later(paused, 2 * INTERVAL)
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="demo", prompt="Once upon", max_tokens=4, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)


def test_lines_that_are_no_events_have_no_comments(paused: httpx.Client) -> None:
    resume_later(paused, 3 * INTERVAL)
    body = {"prompt": "Once upon", "max_tokens": 4, "stream": True}
    with paused.stream("POST", "/generate", json=body) as response:
        assert all(json.loads(line)["text"] for line in response.iter_lines())


def test_a_search_does_not_wait(server: ServerProcess) -> None:
    prompt = [300] * (MOST + 1)
    search = {"prompt": prompt, "max_tokens": 200, "n": 2, "use_beam_search": True, "ignore_eos": True}
    statuses: list[int] = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        thread = threading.Thread(
            target=lambda: statuses.append(client.post("/v1/completions", json=search).status_code)
        )
        thread.start()
        while not client.get("/load").json()["server_load"]:
            time.sleep(0.01)
        while client.get("/load").json()["server_load"]:
            statuses.append(client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code)
        thread.join(60)
    assert len(statuses) > 1
    assert set(statuses) == {200}


def test_prompts_that_wait_are_limited_by_their_tokens(paused: httpx.Client) -> None:
    body = {"prompt": [300] * (MOST - 1), "max_tokens": 2}
    done: list[int] = []

    def ask() -> None:
        done.append(paused.post("/v1/completions", json=body).status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while paused.get("/load").json()["server_load"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    refused = paused.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
    assert refused.status_code == 503
    assert f"of {MOST}" in refused.json()["error"]["message"]
    assert "retry-after" in refused.headers
    paused.post("/resume")
    for thread in threads:
        thread.join(60)
    assert done == [200, 200]
    assert paused.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2}).status_code == 200


def test_what_the_server_is(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        info = client.get("/server_info").json()
        assert "max_model_len=512" in info["vllm_config"]
        assert info["engine"]["max_model_len"] == 512
        assert info["system_env"]["packages"]["jaxllm"]
        as_json = client.get("/server_info?config_format=json").json()["vllm_config"]
        assert as_json["model"]["model"] == "demo"
        assert as_json["scheduler"]["max_num_seqs"] == 4
        assert "hf_token" not in as_json["model"]
        assert "distributed_secret" not in as_json["distributed"]
        assert as_json["scheduler"]["long_prefill_token_threshold"] is not None
        assert info["vllm_env"]["VLLM_NO_USAGE_STATS"] == "1"
        assert {info["vllm_env"][name] for name in SECRETS} == {"(not shown)"}
        assert "sekret" not in f"{info}{as_json}"
        assert client.get("/server_info?config_format=xml").status_code == 400
