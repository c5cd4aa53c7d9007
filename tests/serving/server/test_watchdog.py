"""Processes that take too much memory: nothing new is taken, and an engine is restarted, whose requests continue."""

import asyncio
import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxllm.serving.server.watchdog import EngineMemory, MemoryGuard, child_memory, watch_lag
from tests.serving.server_process import SMALL, Stream, running

GIB = 2**30
SECONDS = 120.0


def verdicts(guard: MemoryGuard, *sizes: float, pid: int = 7) -> list[str]:
    return [guard.judge("engine 0", pid, int(size * GIB)) for size in sizes]


def test_first_nothing_new_is_taken_then_an_engine_is_restarted() -> None:
    guard = MemoryGuard(4.0)
    assert verdicts(guard, 1, 3.5, 3.7, 4.1, 3.9, 4.1, 4.2) == ["fine"] * 2 + ["shed"] * 4 + ["restart"]
    # The next process begins anew.
    assert verdicts(guard, 1, 4.1, 4.1, pid=8) == ["fine", "shed", "restart"]


def test_what_begins_with_too_much_is_not_restarted_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    guard = MemoryGuard(1.0)
    assert verdicts(guard, 1.5, 1.5, 1.6, 1.6) == ["shed"] * 4
    assert caplog.text.count("restarting it would not help") == 1
    assert verdicts(MemoryGuard(0), 1e6, 1e6, 1e6) == ["fine"] * 3


def test_only_children_are_looked_at() -> None:
    assert child_memory(None) is None
    assert child_memory(os.getpid()) is None
    assert child_memory(1) is None
    seen: list[Any] = []
    memory = EngineMemory(1e-6, lambda *found: seen.append(found))
    assert memory.look([(0, None, pytest.fail), (1, os.getpid(), pytest.fail)]) == ""
    assert not seen


async def test_a_loop_that_is_held_up_is_late() -> None:
    found: list[float] = []
    watching = asyncio.create_task(watch_lag(found.append))
    await asyncio.sleep(0.05)
    time.sleep(0.6)  # noqa: ASYNC251  (what it is about)
    await asyncio.sleep(0.01)
    watching.cancel()
    assert found[0] > 0.3


def metrics(client: httpx.Client) -> str:
    return client.get("/metrics").raise_for_status().text


def test_a_request_that_takes_memory_has_its_engine_restarted(tmp_path: Path) -> None:
    """All processes take nothing new, the engine is replaced, and the text is that of an undisturbed run."""
    flags = ("--api-server-count", "2", "--max-process-memory", "1.5", "--access-log")
    processor = ("--logits-processors", "tests.serving.server.hungry:Hungry")
    body = {
        "prompt": "The cat", "max_tokens": 450, "temperature": 0, "ignore_eos": True, "stream": True,
        "vllm_xargs": {"eat": str(tmp_path / "eaten")},
    }  # fmt: skip
    with (
        running(tmp_path / "log", *SMALL, *flags, *processor) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
    ):
        # Its first token may be the next engine's.
        stream = Stream(client, body, wait=False)
        answers: Counter[tuple[int, str]] = Counter()
        while stream.is_alive():
            # One that the engine has would wait with it for the next engine, and see nothing meanwhile.
            if client.get("/ready").status_code != 200:
                answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
                answers[answer.status_code, answer.json().get("error", {}).get("code", "")] += 1
            time.sleep(0.02)
        disturbed = stream.rest()
        deadline = time.monotonic() + SECONDS
        while client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        undisturbed = Stream(client, body).rest()
        texts = [
            "".join(json.loads(each)["choices"][0]["text"] for each in events[:-1])
            for events in (disturbed, undisturbed)
        ]
        assert texts[0] == texts[1]
        assert answers[503, "overloaded"], answers
        # A start may take longer on a busy machine than requests wait for it.
        assert answers.keys() <= {(200, ""), (503, "overloaded"), (503, "engine_unavailable")}
        assert "(--max-process-memory); restarting it" in server.log
        assert "taking new requests again" in server.log
        text = metrics(client)
        assert 'engine_restarts_total{engine="0",model_name="demo"} 1' in text
        for process in ("engine", "api_server"):
            (size,) = re.findall(rf'process_memory_bytes\{{.*process="{process}".*\}} (\S+)', text)
            assert 10**8 < float(size) < 1.35 * GIB
        for name in ("event_loop_lag_seconds", "engine_loop_lag_seconds"):
            (count,) = re.findall(rf"jaxllm:{name}_count\{{.*\}} (\S+)", text)
            assert float(count) > 0
        assert "Traceback" not in server.log
