"""A server ends well when its operator says so: over HTTP, by SIGHUP, and again by SIGTERM."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.serving.server_process import LONG, SMALL, ServerProcess, Stream, running

KEY = "sekret-of-the-operator"
SECONDS = 120.0
SEVERAL = (*SMALL, "--api-server-count", "2")


def assert_it_drains(server: ServerProcess, client: httpx.Client, stream: Stream) -> None:
    """What runs finishes, nothing new begins, exit code 0."""
    deadline = time.monotonic() + SECONDS
    while client.get("/ready").status_code == 200:
        assert time.monotonic() < deadline
    refused = client.post("/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert "retry-after" in refused.headers
    assert client.get("/live").status_code == 200
    found = stream.rest()
    assert found[-1] == b"[DONE]"
    assert json.loads(found[-2])["choices"][0]["finish_reason"] == "length"
    assert server.end() == 0
    assert "Traceback" not in server.log


def test_the_operator_drains_several_processes_with_the_key(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        running(tmp_path / "log", *SEVERAL, environment={"JAXLLM_API_KEY": KEY}) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS, headers=headers) as client,
    ):
        children = psutil.Process(server.process.pid).children(recursive=True)
        stream = Stream(client, LONG)
        assert httpx.post(f"{server.url}/drain").status_code == 401
        answer = client.post("/drain")
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["status"], told["shutdown_timeout"]) == ("draining", 30.0)
        # Kubernetes sends it after a hook has drained, and SIGHUP may come twice: nothing is cut short.
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGHUP)
        assert_it_drains(server, client, stream)
        assert not psutil.wait_procs(children, timeout=SECONDS)[1]


@pytest.fixture
def hangups() -> Iterator[None]:
    """Processes that are started get SIGHUP, even where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_drains_it_and_without_keys_nobody_may(tmp_path: Path, hangups: None) -> None:
    with (
        running(tmp_path / "log", *SMALL) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
    ):
        refused = client.post("/drain")
        assert refused.status_code == 404
        assert "--api-key or --server-dev-mode" in refused.text
        assert client.get("/ready").status_code == 200
        stream = Stream(client, LONG)
        server.signal(signal.SIGHUP)
        assert_it_drains(server, client, stream)
