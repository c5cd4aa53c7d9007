"""Many streams at once: each gets what it would get alone, whatever the others do."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import psutil
import pytest

from jaxllm import LLM
from scripts.demo_model import held_out
from tests.e2e.serving.conftest import OPTIONS
from tests.e2e.serving.metrics import IDLE_SECONDS, Metrics
from tests.e2e.serving.slow_reader import read_all, request_bytes, slow_connection
from tests.e2e.serving.streams import Ask, offline, open_session, read_stream, read_streams
from tests.serving.server_process import ServerProcess

STREAMS = 128
ROUNDS = 4
GROWTH_BYTES = 8 * 2**20
"""Memory may grow by so much from the second round to the last; in the first, buffers and caches fill."""
LEAVING_TOKENS = 5000
"""Most tokens generated after clients have left, of 46,000 they have asked for: one stream, and some steps of 32."""

PARAMETERS: tuple[Callable[[int], dict[str, Any]], ...] = (
    lambda _: {"temperature": 0, "max_tokens": 40},
    lambda seed: {"temperature": 1.0, "seed": seed, "max_tokens": 32, "ignore_eos": True},
    lambda seed: {"temperature": 0.9, "seed": seed, "max_tokens": 64, "stop": [" the ", "s.", "er"]},
    lambda seed: {"temperature": 1.0, "seed": seed, "max_tokens": 24, "n": 2},
    lambda seed: {
        "seed": seed, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2, "max_tokens": 30,
    },
    lambda seed: {
        "seed": seed, "temperature": 1.3, "min_tokens": 8, "max_tokens": 32, "stop": "e", "presence_penalty": 0.5,
        "include_stop_str_in_output": True, "logit_bias": {"300": 2.0},
    },
)  # fmt: skip
"""Makers of parameters, each from a seed."""


def mixed(llm: LLM) -> list[Ask]:
    """Conversations, texts and token ids, under all kinds of parameters."""
    asks = []
    for index, item in enumerate(held_out.prompts(seed=11, count=STREAMS)):
        prompt: Any = item.prompt
        if item.chat and index % 2:
            prompt = [dict(message) for message in item.messages]
        elif index % 4 == 0:
            prompt = llm.get_tokenizer().encode(item.prompt)
        asks.append(Ask(prompt, PARAMETERS[index % len(PARAMETERS)](index)))
    return asks


async def test_many_streams(server: ServerProcess, llm: LLM) -> None:
    """Round after round, tokens and texts are those of offline generation, and memory does not grow."""
    asks = mixed(llm)
    want = offline(llm, asks)
    assert {choice.finish_reason for choices in want for choice in choices} == {"stop", "length"}
    assert any(isinstance(choice.stop_reason, str) for choices in want for choice in choices)
    before = Metrics.read(server.url)
    memory = []
    for _ in range(ROUNDS):
        found = await read_streams(server.url, asks)
        for ask, got, expected in zip(asks, found, want, strict=True):
            assert got == expected, ask
        memory.append(_memory(server))
    after = Metrics.wait_until_idle(server.url)
    assert after["prefix_cache_hits_total"] > before["prefix_cache_hits_total"], "no prompt came twice"
    for process, early in memory[1].items():
        assert memory[-1][process] - early < GROWTH_BYTES, memory


def _memory(server: ServerProcess) -> dict[str, int]:
    """Resident bytes of the server's two processes."""
    return {
        "server": psutil.Process(server.process.pid).memory_info().rss,
        "engine": server.engine().memory_info().rss,
    }


async def test_a_slow_reader_delays_nobody_and_misses_nothing(server: ServerProcess, llm: LLM) -> None:
    """It reads nothing until all others, which came later, have everything, and the engine is idle."""
    slow = Ask(
        [{"role": "user", "content": "Tell me a story."}],
        {"temperature": 1.0, "seed": 3, "n": 4, "ignore_eos": True, "max_tokens": 450},
    )
    others = [Ask("Once upon a time", {"temperature": 1.0, "seed": seed, "max_tokens": 20}) for seed in range(4)]
    want = offline(llm, [slow, *others])
    # The alternatives of every token make the response larger than what fits between server and reader.
    body = slow.body(logprobs=True, top_logprobs=20)
    with slow_connection(server.port) as connection:
        connection.sendall(request_bytes(slow.path, body))
        assert await read_streams(server.url, others) == want[1:]
        Metrics.wait_until_idle(server.url)
        chunks = read_all(connection)
    assert chunks.whole() == want[0]
    tokens = sum(len(choice.token_ids) for choice in want[0])
    assert chunks.num_events < tokens, "nothing had to wait and merge"


async def test_clients_that_leave(server: ServerProcess, llm: LLM) -> None:
    """Streams and waiting requests, running and queued: all end within a step, and one that stays does not notice."""
    stays = Ask("Once upon a time", {"temperature": 1.0, "seed": 5, "max_tokens": 300, "ignore_eos": True})
    (want,) = offline(llm, [stays])
    long = {"max_tokens": 480, "ignore_eos": True, "temperature": 1.0}
    async with open_session(server.url) as session:
        staying = asyncio.ensure_future(read_stream(session, stays))
        leaving = [
            asyncio.ensure_future(_post(session, Ask("Mira is", {**long, "seed": index, "n": 1 + index % 2}), index))
            for index in range(2 * OPTIONS["max_num_seqs"])
        ]
        await _until_they_are_in(session, len(leaving))
        assert not any(task.done() for task in leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        before = Metrics.read(server.url)["generation_tokens_total"]
        assert await staying == want
    after = Metrics.wait_until_idle(server.url)["generation_tokens_total"]
    assert after - before < LEAVING_TOKENS, "it went on generating for nobody"
    async with open_session(server.url) as session, session.post("/reset_prefix_cache") as response:
        assert response.status == 200, await response.text()
    await asyncio.sleep(0.5)
    assert Metrics.read(server.url)["generation_tokens_total"] == after


async def _until_they_are_in(session: aiohttp.ClientSession, count: int) -> None:
    async with asyncio.timeout(IDLE_SECONDS):
        while True:
            async with session.get("/load") as response:
                if (await response.json())["server_load"] >= count:
                    return
            await asyncio.sleep(0.01)


async def _post(session: aiohttp.ClientSession, ask: Ask, index: int) -> None:
    """Send a request, every other one as a stream, and read until told to leave."""
    async with session.post(ask.path, json=ask.body(stream=bool(index % 2))) as response:
        await response.read()
    pytest.fail("it should have taken longer")
