"""Engines are added, drained and removed under load, before two API servers: nobody loses a request."""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.serving.server_process import LONG, SMALL, ServerProcess, running

BODY: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 1, "seed": 7, "extra_body": {"ignore_eos": True}}
SECONDS = 120.0


def engines(server: ServerProcess) -> list[psutil.Process]:
    """Its engine processes."""
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "jaxllm.serving.ipc.engine_process" in child.cmdline()]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


class Load:
    """Clients that each ask again soon after an answer, until they are told to stop."""

    def __init__(self, server: ServerProcess, clients: int) -> None:
        self.texts: list[str] = []
        self._stop = False
        self._tasks = [asyncio.create_task(self._ask(server)) for _ in range(clients)]

    async def _ask(self, server: ServerProcess) -> None:
        # No retries: what is refused or lost is to be seen.
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="secret", max_retries=0, timeout=SECONDS
        ) as client:
            while not self._stop:
                stream = await client.completions.create(model="demo", max_tokens=20, stream=True, **BODY)
                parts = [event.choices[0].text async for event in stream if event.choices]
                self.texts.append("".join(parts))
                await asyncio.sleep(0.05)  # so that the next engine starts sooner

    async def end(self) -> None:
        """Let everybody finish; raises what one met."""
        self._stop = True
        await asyncio.gather(*self._tasks)


async def scale(client: httpx.AsyncClient, size: Any, path: str = "/scale", **more: Any) -> httpx.Response:
    return await client.post(path, json={"new_data_parallel_size": size, **more}, timeout=SECONDS)


@pytest.mark.slow
async def test_scaling_under_load_loses_nothing(tmp_path: Path) -> None:
    flags = ("demo", *SMALL, "--api-server-count", "2", "--api-key", "secret")
    with running(tmp_path / "log", *flags) as server:
        async with httpx.AsyncClient(base_url=server.url, headers={"Authorization": "Bearer secret"}) as client:
            load = Load(server, 4)
            await until(lambda: len(load.texts) > 4)
            grown = await scale(client, 3)
            assert grown.status_code == 200, grown.text
            assert [each["state"] for each in grown.json()["engines"]] == ["up"] * 3
            assert len(engines(server)) == 3
            before = len(load.texts)
            await until(lambda: len(load.texts) > before + 12)
            await takes_too_long(client)
            again = await scale(client, 1, "/scale_elastic_ep", drain_timeout=60)
            assert again.json() == {"message": "Scaled to 1 data parallel engines"}
            assert len(engines(server)) == 1
            await load.end()
            assert len(set(load.texts)) == 1, "each engine gives the same tokens"
            await asyncio.sleep(0.5)  # until the processes have told each other
            text = (await client.get("/metrics")).text
            tokens = [float(line.split()[-1]) for line in text.splitlines() if "generation_tokens_total{" in line]
            assert sum(tokens) >= 20 * len(load.texts)
            assert len(tokens) == 3
            assert min(tokens) > 0
            assert text.count("num_requests_running{") == 1, "no gauges of engines that are gone"
            await bad_requests(client)
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.log


async def takes_too_long(client: httpx.AsyncClient) -> None:
    """A request that outlives the time to drain: nothing changes, and it ends well."""
    rank, long = {"X-data-parallel-rank": "2"}, {**LONG, "n": 24}
    async with client.stream("POST", "/v1/completions", json=long, headers=rank, timeout=SECONDS) as answer:
        lines = answer.aiter_lines()
        await anext(lines)  # It runs there.
        draining = asyncio.create_task(scale(client, 2, drain_timeout=1))
        while not (await client.get("/is_scaling_elastic_ep")).json()["is_scaling_elastic_ep"]:
            assert not draining.done(), draining.result().text
        assert (await client.get("/scale")).json()["target"] == 2
        busy = await scale(client, 3)
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "scaling")
        late = await draining
        assert (late.status_code, late.json()["error"]["code"]) == (408, "drain_timeout"), late.text
        events = [line async for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert sum('"finish_reason":"length"' in event for event in events) == long["n"]
    shown = (await client.get("/scale")).json()
    assert (shown["data_parallel_size"], shown["target"]) == (3, None)


async def bad_requests(client: httpx.AsyncClient) -> None:
    """Sizes that cannot be, no key, and an engine that is gone."""
    for size in (0, 65, -1, "two", 1.5, None):
        answer = await scale(client, size)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "new_data_parallel_size"
    assert (await scale(client, 2, drain_timeout=0)).json()["error"]["param"] == "drain_timeout"
    client.headers.pop("Authorization")
    assert (await scale(client, 2)).status_code == 401
    client.headers["Authorization"] = "Bearer secret"
    body = {"prompt": "a", "max_tokens": 1}
    gone = await client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": "1"})
    assert gone.status_code == 400
    assert "must be 0" in gone.json()["error"]["message"]
    same = await scale(client, 1)
    assert same.json()["engines"] == [{"data_parallel_rank": 0, "state": "up", "requests": 0}]
