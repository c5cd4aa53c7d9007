"""Grammars that would end a process, or take its memory, sent to a real server by every way there is."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.serving.openai.conftest import KEY
from tests.serving.openai.hostile_grammars import FORMS, SCHEMAS
from tests.serving.server_process import ServerProcess

SECONDS = 60
KILLS = 12

MESSAGES = [{"role": "user", "content": "Hello"}]
MOST_GROWTH = 150 << 20
"""Bytes that a process which serves people may grow by all hostile grammars together."""

MOST_GAP = 3.0
"""Seconds between two tokens of a neighbour; much less on a machine that does nothing else."""


@pytest_asyncio.fixture
async def anyone(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A client that sends whatever it is told."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120) as made:
        yield made


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a function that is to be called."""
    return {"type": "object", "properties": {"value": {"$ref": "#/$defs/0"}}, "required": ["value"], **schema}


def bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    """By name, a path and what is sent to it."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, form in FORMS.items():
        found[name] = "/v1/completions", {"prompt": "Hello", "structured_outputs": form}
    for name, schema in SCHEMAS.items():
        json_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        found[f"response_format: {name}"] = (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": json_schema},
        )
        found[f"responses: {name}"] = "/v1/responses", {"input": "Hello", "text": text}
        if "$ref" not in schema:
            continue
        parameters = {**tool(schema), "$ref": "#/$defs/0"}
        function = {"name": "f", "parameters": parameters}
        found[f"tools: {name}"] = (
            "/v1/chat/completions",
            {"messages": MESSAGES, "tools": [{"type": "function", "function": function}], "tool_choice": "required"},
        )
        found[f"messages: {name}"] = (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 9,
                "tools": [{"name": "f", "input_schema": parameters}],
                "tool_choice": {"type": "any"},
            },
        )
    return found


async def gaps(client: AsyncOpenAI, until: asyncio.Event) -> list[float]:
    """Seconds between the tokens of streams that follow each other, until the event is set."""
    found: list[float] = []
    while not until.is_set():
        stream = await client.completions.create(
            model="demo", prompt="Once", max_tokens=240, stream=True, extra_body={"ignore_eos": True}
        )
        last = time.perf_counter()
        async for _ in stream:
            found.append(time.perf_counter() - last)
            last = time.perf_counter()
    return found


async def until(fulfilled: Callable[[], Any]) -> None:
    """Wait for it."""
    while not fulfilled():  # noqa: ASYNC110  (it is about another process)
        await asyncio.sleep(0.005)


def memory(server: ServerProcess) -> int:
    """Bytes that the process for HTTP and the engine hold."""
    return sum(each.memory_info().rss for each in (psutil.Process(server.process.pid), server.engine()))


async def test_hostile_grammars_are_refused_and_nobody_notices(
    server: ServerProcess, anyone: httpx.AsyncClient, async_client: AsyncOpenAI
) -> None:
    done = asyncio.Event()
    neighbour = asyncio.create_task(gaps(async_client, done))
    before = memory(server)
    for name, (path, body) in bodies().items():
        # The second time the verdict is known.
        for _ in range(2):
            answer = await anyone.post(path, json={"model": "demo", **body})
            assert answer.status_code == 400, (name, answer.text[:300])
            assert "too complex" in answer.text or "nested" in answer.text, (name, answer.text[:300])
    done.set()
    assert max(await neighbour) < MOST_GAP
    assert memory(server) - before < MOST_GROWTH
    assert (await anyone.get("/health")).status_code == 200
    good = {"prompt": "Hello", "structured_outputs": {"choice": ["yes", "no"]}}
    answer = await anyone.post("/v1/completions", json={"model": "demo", **good})
    assert answer.json()["choices"][0]["text"] in ("yes", "no")


async def test_a_client_that_leaves_ends_its_trial(server: ServerProcess, anyone: httpx.AsyncClient) -> None:
    parts = " & ".join(f"/(?s:.*)(x|y){{{each},}}(?s:.*)/" for each in range(40))
    steep = {"grammar": f"start: T\nT: {parts}\n"}
    canary = server.canary()
    leaving = [
        asyncio.create_task(anyone.post(path, json={"model": "demo", **body}))
        for path, body in (
            ("/v1/completions", {"prompt": "Hello", "structured_outputs": steep}),
            ("/v1/chat/completions", {"messages": MESSAGES, "structured_outputs": steep}),
        )
    ]
    async with asyncio.timeout(SECONDS):
        await until(canary.children)
        for each in leaving:
            each.cancel()
        while trials := canary.children():
            with suppress(psutil.NoSuchProcess):
                # Not the time by the clock, in which other processes may have been running.
                spent = [sum(trial.cpu_times()[:2]) for trial in trials]
                assert max(spent) < 1.5, "nobody ends it but its limit of two seconds"
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_streams_do_not_notice_when_the_canary_dies(
    server: ServerProcess, anyone: httpx.AsyncClient, async_client: AsyncOpenAI
) -> None:
    """Killed again and again, and some of its children, while it has grammars to try."""
    done = asyncio.Event()
    neighbour = asyncio.create_task(gaps(async_client, done))
    chosen = random.Random(0)
    for number in range(KILLS):
        form = {"choice": ["yes", "no", f"perhaps {number}"]}
        body = {"model": "demo", "prompt": "Hello", "structured_outputs": form, "max_tokens": 20}
        asked = asyncio.create_task(anyone.post("/v1/completions", json=body))
        await asyncio.sleep(chosen.uniform(0, 0.3))
        with suppress(psutil.NoSuchProcess):
            canary = server.canary()
            for victim in [*canary.children(), canary]:
                victim.kill()
        answer = await asked
        assert answer.status_code == 200, answer.text
    done.set()
    assert max(await neighbour) < MOST_GAP


async def test_numbers_beyond_64_bits(anyone: httpx.AsyncClient) -> None:
    schema = {"const": 10**30}
    named = {"name": "x", "schema": schema}
    tag = {"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<a>"]}
    for path, body in (
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 64, "structured_outputs": {"json": schema}}),
        ("/v1/completions", {"prompt": "Hello", "structured_outputs": {"json": json.dumps(schema)}}),
        ("/v1/completions", {"prompt": "Hello", "structured_outputs": {"structural_tag": tag}}),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": named}},
        ),
        ("/v1/responses", {"input": "Hello", "text": {"format": {"type": "json_schema", **named}}}),
    ):
        answer = await anyone.post(path, json={"model": "demo", **body})
        assert answer.status_code == 200, (path, body, answer.text)
        assert "max_tokens" not in body or answer.json()["choices"][0]["text"] == str(10**30)


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 11, "0" * 5000, "-1", "x" * 5000])
async def test_keys_of_logit_bias_that_are_no_tokens(anyone: httpx.AsyncClient, digits: str) -> None:
    body = {"model": "demo", "prompt": "Hello", "logit_bias": {digits: 1}}
    answer = await anyone.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "logit_bias" in answer.json()["error"]["param"]
    assert len(answer.text) < 1000
