"""The process that tries grammars is killed 100 times, or its children: nobody notices."""

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from typing import Any

import openai
import psutil
import pytest
from openai import AsyncOpenAI

from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess
from tests.thinned import EVERY_CASE

logger = logging.getLogger(__name__)

ROUNDS = 10 if EVERY_CASE else 1
PROCESS_KILLS, CHILD_KILLS = 10, 90
"""Of a round."""
CLIENTS = 24
"""Who ask for grammars that are new, all the time."""
TOKENS = 200
MOST_GAP = 3.0
"""Seconds between two tokens of a neighbour, or until /health answers; much less on an idle machine."""


class Neighbours:
    """Streams of greedy text, one after the other, compared with what came when nothing happened."""

    def __init__(self, client: AsyncOpenAI, prompts: list[str]) -> None:
        self.gap, self.ended, self.over = 0.0, 0, False
        self._client, self._prompts = client, prompts
        self._undisturbed: dict[str, str] = {}

    async def learn(self) -> None:
        """See what comes when nothing happens."""
        for prompt in self._prompts:
            self._undisturbed[prompt] = await self._stream(prompt)
        self.gap = 0.0

    async def run(self) -> None:
        """Until it is `over`."""
        await asyncio.gather(*(self._repeat(prompt) for prompt in self._prompts))

    async def _repeat(self, prompt: str) -> None:
        while not self.over:
            assert await self._stream(prompt) == self._undisturbed[prompt]
            self.ended += 1

    async def _stream(self, prompt: str) -> str:
        text, tokens, last = "", 0, time.perf_counter()
        stream = await self._client.completions.create(
            model="demo", prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for chunk in stream:
            self.gap = max(self.gap, time.perf_counter() - last)
            last = time.perf_counter()
            text += "".join(choice.text for choice in chunk.choices)
            tokens = chunk.usage.completion_tokens if chunk.usage is not None else tokens
        assert tokens == TOKENS
        return text

    async def watch_health(self, url: str) -> int:
        """Ask until it is over; how often it was well."""
        asked = 0
        async with openai.DefaultAsyncHttpxClient(timeout=MOST_GAP) as client:
            while not self.over:
                assert (await client.get(f"{url}/health")).status_code == 200
                asked += 1
                await asyncio.sleep(0.1)
        return asked


def schema(number: int) -> dict[str, Any]:
    """One that takes a while to compile, and whose outputs are short."""
    patterns = [f"^[a-z]{{{index % 60},90}}x$" for index in range(400)]
    parts = {f"{number} {index}": {"type": "string", "pattern": each} for index, each in enumerate(patterns)}
    return {"type": "object", "properties": {"yes": {"type": "boolean"}, **parts}, "required": ["yes"]}


class Askers:
    """Clients with new grammars, who must all be served."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self.waits: list[float] = []
        self.over = False
        self._client = client

    async def run(self) -> None:
        """Until it is `over`."""
        await asyncio.gather(*(self._repeat(number) for number in range(CLIENTS)))

    async def _repeat(self, number: int) -> None:
        while not self.over:
            began = time.perf_counter()
            answer = await self._client.completions.create(
                model="demo", prompt="Hello", max_tokens=4, temperature=0, extra_body={"guided_json": schema(number)}
            )
            assert answer.choices[0].text.startswith("{")
            self.waits.append(time.perf_counter() - began)
            number += CLIENTS


def victims(server: ServerProcess) -> list[psutil.Process]:
    """The process that tries grammars, and then its children; empty if there is none at the moment."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(server.process.pid).children():
            if "jaxllm.structured.grammar_sandbox.process" in child.cmdline():
                return [child, *child.children()]
    return []


async def kill(server: ServerProcess, count: int, *, children: bool) -> None:
    """Kill so many, each as soon as it is there."""
    deadline, killed = time.monotonic() + 120, set[int]()
    while len(killed) < count:
        assert time.monotonic() < deadline, f"{len(killed)} of {count}"
        found = victims(server)
        for each in found[1:] if children else found[:1]:
            if each.pid not in killed and len(killed) < count:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
                    killed.add(each.pid)
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_nobody_notices_that_the_canary_is_killed(server: ServerProcess) -> None:
    began = time.monotonic()
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        neighbours = Neighbours(client, ["Once upon a time", "The dog", "Mira"])
        await neighbours.learn()
        running = asyncio.create_task(neighbours.run())
        health = asyncio.create_task(neighbours.watch_health(server.url))
        askers = Askers(client)
        asking = asyncio.create_task(askers.run())
        for _ in range(ROUNDS):
            await kill(server, PROCESS_KILLS, children=False)
            await kill(server, CHILD_KILLS, children=True)
            # Whoever waited has an answer soon after nobody kills any more.
            served = len(askers.waits) + CLIENTS
            while len(askers.waits) < served:
                for task in (running, asking, health):
                    if task.done():
                        task.result()
                await asyncio.sleep(0.05)
        askers.over = neighbours.over = True
        await asking
        await running
        asked_health = await health
    waits = askers.waits
    logger.warning(
        "%d kills of the process, %d of children in %.0f s; %d grammars, answered after at most %.1f s; "
        "%d streams of %d tokens, largest gap %.3f s; %d times healthy",
        *(ROUNDS * PROCESS_KILLS, ROUNDS * CHILD_KILLS, time.monotonic() - began, len(waits), max(waits)),
        *(neighbours.ended, TOKENS, neighbours.gap, asked_health),
    )
    assert neighbours.ended
    assert neighbours.gap < MOST_GAP
