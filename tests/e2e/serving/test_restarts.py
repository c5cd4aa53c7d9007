"""Engines that die or hang under load: another one comes and goes on, but not for ever."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import psutil
import pytest

from tests.e2e.serving.conftest import FLAGS
from tests.e2e.serving.metrics import Metrics
from tests.serving.server_process import LONG, ServerProcess, Stream, running

SECONDS = 120.0
LONG_ANSWER = {**LONG, "stream": False}
TEXT = {"type": "string", "minLength": 200, "maxLength": 300}
FOUND: dict[str, Any] = {
    "type": "object", "properties": {"text": TEXT}, "required": ["text"], "additionalProperties": False,
}  # fmt: skip
SHORT = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
Served = tuple[ServerProcess, httpx.Client]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def served(tmp_path: Path, *flags: str) -> Iterator[Served]:
    with (
        running(tmp_path / "log", *FLAGS, *flags) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
    ):
        yield server, client


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that outlives every engine of the tests that share it, but for the last."""
    flags = ("--step-timeout", "7", "--max-restarts", "20")
    with served(tmp_path_factory.mktemp("lasting"), *flags) as found:
        yield found


@pytest.fixture(scope="module")
def unforgiving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose requests end with their engine, and that ends as it should."""
    with served(tmp_path_factory.mktemp("unforgiving"), "--max-request-crashes", "0") as found:
        server, _ = found
        yield found
        server.signal(signal.SIGTERM)
        assert server.end() == 0, server.log
        assert "Traceback" not in server.log


def restarts(server: ServerProcess) -> float:
    return Metrics.read(server.url)["engine_restarts_total"]


async def _read_streams(url: str, count: int, begun: threading.Semaphore) -> list[str | Exception]:
    """Streams by the client that everybody uses: the text of each, or the error with which it ends."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS, max_retries=0) as client:

        async def read() -> str | Exception:
            text = ""
            try:
                stream = await client.completions.create(
                    model="demo", prompt="Once", stream=True, max_tokens=480, seed=1, extra_body={"ignore_eos": True}
                )
                async for event in stream:
                    if not text:
                        begun.release()
                    text += event.choices[0].text
            except openai.APIError as error:
                return error
            return text

        return list(await asyncio.gather(*(read() for _ in range(count))))


class OpenAIStreams(threading.Thread):
    """Long streams alongside the test; all have begun when this is made."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(daemon=True)
        self.found: list[str | Exception] = []
        self._url, self._count = url, count
        self._begun = threading.Semaphore(0)
        self.start()
        for _ in range(count):
            assert self._begun.acquire(timeout=SECONDS)

    def run(self) -> None:
        self.found = asyncio.run(_read_streams(self._url, self._count, self._begun))

    def texts(self) -> list[str | Exception]:
        self.join(SECONDS)
        assert not self.is_alive()
        return self.found


def call(url: str, begun: threading.Event) -> tuple[str, str]:
    """The name and arguments of a call of a tool, as OpenAI's client reads them from a stream."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS, max_retries=0) as client:
        name, arguments = "", ""
        for event in client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Find a fox"}], stream=True, max_tokens=400, seed=9,
            tools=[{"type": "function", "function": {"name": "find", "parameters": FOUND}}], tool_choice="required",
        ):  # fmt: skip
            for each in event.choices[0].delta.tool_calls or ():
                assert each.function is not None
                name += each.function.name or ""
                arguments += each.function.arguments or ""
                begun.set()
        return name, arguments


def answers(client: httpx.Client) -> str:
    response = client.post("/v1/completions", json=SHORT)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def assert_healthy(client: httpx.Client) -> None:
    until(lambda: client.get("/health").status_code == client.get("/ready").status_code == 200)


def test_a_dead_engine_is_restarted_and_all_is_well(lasting: Served) -> None:
    server, client = lasting
    with ThreadPoolExecutor(1) as threads:
        text = answers(client)
        wanted = OpenAIStreams(server.url, 1).texts()
        called = call(server.url, threading.Event())
        jsonschema.validate(json.loads(called[1]), FOUND)
        before = Metrics.read(server.url)
        began_with, resumed = before["engine_restarts_total"], before["requests_resumed_total"]
        for times in (1, 2):
            engine = server.engine()
            waiting: list[httpx.Response] = []
            whole = threading.Thread(
                target=lambda: waiting.append(client.post("/v1/completions", json=LONG_ANSWER))  # noqa: B023
            )
            streams = OpenAIStreams(server.url, 12)
            begun = threading.Event()
            calling = threads.submit(call, server.url, begun)
            assert begun.wait(SECONDS)
            # After them, so that it cannot have ended when they have begun.
            began = client.get("/load").json()["server_load"]
            whole.start()
            until(lambda: calling.done() or client.get("/load").json()["server_load"] != began)  # noqa: B023
            engine.kill()
            # Nothing runs, whoever tells: not the last that was heard of the dead.
            until(lambda: client.get("/health").status_code == 503)
            down = Metrics.read(server.url)
            assert (down["num_requests_running"], down["kv_cache_usage_perc"]) == (0, 0)
            assert streams.texts() == wanted * 12
            assert calling.result() == called
            whole.join(SECONDS)
            assert waiting[0].status_code == 200
            assert waiting[0].json()["usage"] == {**waiting[0].json()["usage"], "completion_tokens": 480 * 16}
            # Who comes now waits for the next one, or for longer than it should take.
            until(lambda: client.post("/v1/completions", json=SHORT).status_code == 200)
            assert_healthy(client)
            assert answers(client) == text
            assert server.engine().pid != engine.pid
            after = Metrics.read(server.url)
            assert after["engine_restarts_total"] == began_with + times
            assert resumed < after["requests_resumed_total"] <= resumed + 14
            resumed = after["requests_resumed_total"]
            for name in before.values:
                if name.endswith(("_total", "_count")):
                    assert after[name] >= before[name], name
            before = after


@pytest.mark.slow
def test_a_hanging_engine_is_killed_and_restarted(lasting: Served) -> None:
    server, client = lasting
    wanted = OpenAIStreams(server.url, 1).texts()
    before, engine = restarts(server), server.engine()
    streams = OpenAIStreams(server.url, 8)
    engine.suspend()
    assert streams.texts() == wanted * 8
    assert "the engine hangs" in server.log
    until(lambda: client.post("/v1/completions", json=SHORT).status_code == 200)
    assert_healthy(client)
    psutil.wait_procs([engine], timeout=20)
    assert not engine.is_running()
    # One that nobody uses is missed too.
    engine = server.engine()
    engine.suspend()
    until(lambda: client.get("/health").status_code == 503)
    until(lambda: client.get("/health").status_code == 200)
    assert restarts(server) == before + 2


@pytest.mark.slow
def test_a_pause_shorter_than_the_timeout_costs_nothing(lasting: Served) -> None:
    server, client = lasting
    engine = server.engine()
    stream = Stream(client, {**LONG, "n": 2})
    engine.suspend()
    time.sleep(4.5)  # longer than a question about the requests in flight waits for its turn
    assert client.get("/health").status_code == 200
    engine.resume()
    events = stream.rest()
    assert events[-1] == b"[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    assert server.engine().pid == engine.pid


def test_an_engine_that_dies_again_and_again_ends_the_server(tmp_path: Path) -> None:
    with served(tmp_path, "--max-restarts", "2") as (server, client):
        killed = {server.engine().pid}
        server.engine().kill()
        for _ in range(2):
            # The next one dies while it loads.
            until(lambda: _engines(server) - killed)
            for pid in _engines(server) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        assert server.end() == 1, server.log
        last = server.log.splitlines()[-1]
        assert last.startswith("jaxllm: ")
        assert "killed by SIGKILL" in last
        assert "2 restarts within 600 s" in last
        assert "Traceback" not in server.log
        with pytest.raises(httpx.TransportError):
            client.get("/health")


def _engines(server: ServerProcess) -> set[int]:
    found = set()
    for each in psutil.Process(server.process.pid).children():
        with suppress(psutil.Error):
            if any("engine_process" in part for part in each.cmdline()):
                found.add(each.pid)
    return found


def test_an_engine_that_dies_while_clients_come_and_go(lasting: Served) -> None:
    """Every request ends: with an answer, or with an error that says why; and afterwards all is well."""
    server, client = lasting
    before = restarts(server)
    over = threading.Event()
    seen: list[int] = []

    def load() -> None:
        with httpx.Client(base_url=server.url, timeout=SECONDS) as mine:
            while not over.is_set():
                seen.append(mine.post("/v1/completions", json=SHORT).status_code)

    threads = [threading.Thread(target=load) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        for times in (1, 2):
            begun = len(seen)
            until(lambda: seen[begun:].count(200) >= 20)  # noqa: B023
            os.kill(server.engine().pid, signal.SIGKILL)
            until(lambda: restarts(server) == before + times)  # noqa: B023
        begun = len(seen)
        until(lambda: seen[begun:].count(200) >= 20)
    finally:
        over.set()
        for thread in threads:
            thread.join(SECONDS)
    assert set(seen) <= {200, 503}
    assert client.get("/load").json() == {"server_load": 0}
    assert_healthy(client)


def test_without_resumption_everybody_is_told(unforgiving: Served) -> None:
    server, client = unforgiving
    stream = Stream(client, LONG)
    waiting: list[httpx.Response] = []
    whole = threading.Thread(target=lambda: waiting.append(client.post("/v1/completions", json=LONG_ANSWER)))
    whole.start()
    until(lambda: client.get("/load").json()["server_load"] == 2)
    # Last: alone it takes less time than the others.
    body = {"input": "Tell me a story", "background": True, "max_output_tokens": 480}
    made = client.post("/v1/responses", json={**body, "ignore_eos": True}).json()
    until(lambda: client.get(f"/v1/responses/{made['id']}").json()["status"] == "in_progress")
    server.engine().kill()
    assert b"killed by SIGKILL" in stream.rest()[-1]
    whole.join(SECONDS)
    assert waiting[0].status_code == 503
    assert waiting[0].json()["error"]["code"] == "engine_unavailable"
    assert waiting[0].headers["retry-after"] == "1"
    until(lambda: client.get(f"/v1/responses/{made['id']}").json()["status"] == "failed")
    assert "killed by SIGKILL" in client.get(f"/v1/responses/{made['id']}").json()["error"]["message"]


def test_an_engine_that_dies_while_the_server_drains_is_not_restarted(lasting: Served) -> None:
    server, client = lasting
    engine = server.engine()
    stream = Stream(client, LONG)
    server.signal(signal.SIGTERM)
    server.wait_for("shutting down")
    engine.kill()
    assert b"killed by SIGKILL" in stream.rest()[-1]
    assert server.end() == 1, server.log
    assert "the engine process died" in server.log.splitlines()[-1]
    assert "restarting it" not in server.log.partition("shutting down")[2]
    assert "Traceback" not in server.log
