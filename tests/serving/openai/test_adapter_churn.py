"""Adapters that come and go while others answer: answers are right, nothing is left over."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.adapter_folders import write_adapter
from tests.serving.server_process import SMALL, ServerProcess, running

ADAPTERS, PROMPT, LONG = 4, "Once upon a time there was", 100
MAX_GROWTH = 64 * 2**20
"""Bytes by which the server may grow; 1,000 adapters of `demo` on the host would take several times as many."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("lora")
    for seed in range(ADAPTERS):
        write_adapter(root / str(seed), seed + 1, scale=0.3)
    flags = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-dir", str(root))
    with running(tmp_path_factory.mktemp("log") / "log", *SMALL, *flags) as server:
        yield server


class Stream:
    """Streams from the base model, one request after the other."""

    def __init__(self, url: str) -> None:
        self._url, self._ends = url, threading.Event()
        self.texts: set[str] = set()
        self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(self._run)

    def finish(self) -> None:
        """End after the request that runs. Raises what it has met."""
        self._ends.set()
        self._pool.shutdown()
        self._running.result()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._one()

    def _one(self) -> None:
        body = {"model": "demo", "prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
        with httpx.stream("POST", f"{self._url}/v1/completions", json={**body, "stream": True}, timeout=60) as answer:
            events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
        texts = [json.loads(event)["choices"][0]["text"] for event in events]
        self.texts.add("".join(texts))


def complete(server: ServerProcess, model: str, max_tokens: int = 8) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def post(server: ServerProcess, what: str, **body: str) -> None:
    answer = httpx.post(f"{server.url}/v1/{what}_lora_adapter", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


def memory(server: ServerProcess) -> int:
    """Bytes of all processes of the server."""
    whole = psutil.Process(server.process.pid)
    return sum(each.memory_info().rss for each in (whole, *whole.children(recursive=True)))


def metric(server: ServerProcess, name: str) -> str:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return next(line for line in lines if line.startswith(f"jaxllm:{name}{{"))


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_loading_and_unloading_under_traffic(server: ServerProcess, count: int) -> None:
    wanted = []
    for seed in range(ADAPTERS):
        post(server, "load", lora_name="wanted", lora_path=str(seed))
        wanted.append(complete(server, "wanted"))
        post(server, "unload", lora_name="wanted")
    assert len(set(wanted)) == ADAPTERS
    base = complete(server, "demo", LONG)
    busy = Stream(server.url)
    warm = 0
    for index in range(count):
        # The names are few, and their content is not what it was the last time.
        name, seed = f"adapter-{index % 3}", index % ADAPTERS
        post(server, "load", lora_name=name, lora_path=str(seed))
        assert complete(server, name) == wanted[seed]
        post(server, "unload", lora_name=name)
        if index == count // 4:
            warm = memory(server)
    busy.finish()
    assert busy.texts == {base}, "the base model answers as it did"
    assert memory(server) - warm < MAX_GROWTH
    assert [each["id"] for each in httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]] == ["demo"]
    info = metric(server, "lora_requests_info")
    assert 'running_lora_adapters=""' in info
    assert 'waiting_lora_adapters=""' in info
