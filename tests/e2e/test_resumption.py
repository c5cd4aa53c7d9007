"""Requests outlive their engine: it is killed at any time, and every answer is what it would have been.

The engine is a process of its own, killed by its process id. Answers are compared with those of the same requests when
nothing disturbs them.
"""

import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jaxllm import EngineConfig, SamplingParams
from jaxllm.errors import RequestFaultError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.serving.ipc.client import supervisor
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.llm.output_stream import OutputStream
from tests.adapter_folders import write_adapter

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 240.0
OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "strict_compilation": True, "layer_stack": "scan", "max_num_seqs": 8,
    "max_num_batched_tokens": 16, "max_model_len": 512, "enable_lora": True, "max_loras": 2, "max_lora_rank": 8,
    "logits_processors": ["tests.e2e.processors:EndsEngine"], "spec_method": "ngram", "num_speculative_tokens": 3,
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
Asked = tuple[str, SamplingParams, bool]
"""A prompt, its parameters, and whether it is a stream."""
Answer = dict[int, tuple[Any, ...]]
"""Of each sequence: text, tokens, log-probabilities, finish reason and stop reason; at -1, those of the prompt."""


def sampled(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 120, "temperature": 0.8, "ignore_eos": True, **params})


MIXED: list[Asked] = [
    ("Once upon a time", sampled(temperature=0, max_tokens=160), True),
    ("Once upon a time", sampled(temperature=0, max_tokens=160), False),
    ("The dog", sampled(seed=3), True),
    ("The cat", sampled(), True),
    ("The cat", sampled(presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2), True),
    ("The cat", sampled(logprobs=3, prompt_logprobs=2, max_tokens=60), True),
    ("The bird", sampled(n=3, max_tokens=80), True),
    ("The bird", sampled(n=2, best_of=3, max_tokens=60, logprobs=1), False),
    ("The tree", sampled(stop=["and", "."], min_tokens=30, ignore_eos=False), True),
    ("Write", sampled(max_tokens=200, structured_outputs=StructuredOutputsParams(json=SCHEMA)), True),
    ("Write", sampled(structured_outputs=StructuredOutputsParams(regex="[a-z ]{90}"), logprobs=1), False),
    ("Think", sampled(thinking_token_budget=40, reasoning_end_token_ids=[9], max_tokens=70), True),
    ("Say", sampled(bad_words=["the"], logit_bias={40: 2.0}, min_tokens=20, ignore_eos=False), True),
    ("Find", SamplingParams(temperature=0, max_tokens=24, beam_search=BeamOptions(width=3)), False),
    ("ab ab ab ab ab ab", sampled(temperature=0.2), True),
    ("The sun", sampled(seed=8, max_tokens=100), True),
]
WITH_ADAPTER = (2, 14)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "one", scale=0.3, rank=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    with pytest.MonkeyPatch.context() as patch:
        # Whoever kills it again and again shall not have to wait longer and longer.
        patch.setattr(supervisor, "_FIRST_DELAY", 0.0)
        llm = await AsyncLLM.start(EngineConfig.from_options(OPTIONS), max_restarts=None, log_level="error")
        yield llm
        await llm.shutdown()


async def read(stream: OutputStream) -> Answer:
    found: Answer = {}
    async for output in stream:
        if output.prompt_logprobs is not None:
            found[-1] = (*found.get(-1, ()), output.prompt_logprobs)
        for each in output.outputs:
            text, ids, logprobs, *_ = found.get(each.index, ("", [], []))
            logprobs = logprobs + (each.logprobs or [])
            found[each.index] = text + each.text, ids + each.token_ids, logprobs, each.finish_reason, each.stop_reason
    return found


names = itertools.count()


async def answers(llm: AsyncLLM, asked: Sequence[Asked], adapter: Path | None = None) -> list[Answer | BaseException]:
    """The answers to requests that are sent at once: unseeded ones draw the same each time."""
    llm._draws = itertools.count()
    requests = []
    for index, (prompt, params, stream) in enumerate(asked):
        lora = LoRARequest("one", 1, str(adapter)) if adapter is not None and index in WITH_ADAPTER else None
        requests += await llm.prepare([prompt], params, [f"r{next(names)}"], stream=stream, lora_request=lora)
    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*map(read, llm.submit(requests)), return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(llm: AsyncLLM, adapter: Path) -> list[Answer | BaseException]:
    found = await answers(llm, MIXED, adapter)
    assert not any(isinstance(each, BaseException) for each in found), found
    return found


async def kill_while_it_runs(llm: AsyncLLM, running: "asyncio.Future[Any]", draw: random.Random, most: int) -> int:
    """Kill the engine after random times, while there is something to kill; how often."""
    kills = 0
    while kills < most:
        await llm.wait_for_engine()
        await asyncio.wait([running], timeout=draw.choice([0.02, 0.3, 1.0]) * draw.random())
        if running.done():
            break
        os.kill(llm.engine_pids[0], signal.SIGKILL)
        kills += 1
        while llm.engines.engines[0].health.is_up:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return kills


async def disturb(llm: AsyncLLM, adapter: Path, wanted: list[Answer | BaseException], seed: int, most: int) -> int:
    running = asyncio.ensure_future(answers(llm, MIXED, adapter))
    kills = await kill_while_it_runs(llm, running, random.Random(seed), most)
    for asked, found, expected in zip(MIXED, await running, wanted, strict=True):
        assert found == expected, (seed, asked)
    assert llm.num_unfinished == 0
    return kills


async def test_killed_at_any_time(llm: AsyncLLM, adapter: Path, undisturbed: list[Any]) -> None:
    kills = 0
    for seed in range(2):
        kills += await disturb(llm, adapter, undisturbed, seed, most=2)
    assert kills >= 2


@pytest.mark.exhaustive
async def test_killed_a_hundred_times(llm: AsyncLLM, adapter: Path, undisturbed: list[Any]) -> None:
    kills = 0
    for seed in itertools.count(100):
        kills += await disturb(llm, adapter, undisturbed, seed, most=4)
        if kills >= 100:
            break


async def test_hangs(llm: AsyncLLM, adapter: Path, undisturbed: list[Any]) -> None:
    heartbeat = llm.engines.engines[0]._heartbeat
    await llm.wait_for_engine()
    running = asyncio.ensure_future(answers(llm, MIXED, adapter))
    await asyncio.sleep(0.5)
    limit, heartbeat.limit = heartbeat.limit, 1.0
    os.kill(llm.engine_pids[0], signal.SIGSTOP)
    await asyncio.sleep(1.5)
    while llm.engines.engines[0].health.is_up:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    heartbeat.limit = limit
    assert await running == undisturbed


async def test_one_that_ends_its_engine_is_found(llm: AsyncLLM, adapter: Path, undisturbed: list[Any]) -> None:
    """Those beside it never notice."""
    suspect = ("Boom", sampled(extra_args={"ends_engine_after": 20}), True)
    found = await answers(llm, [*MIXED, suspect], adapter)
    assert found[:-1] == undisturbed
    assert isinstance(found[-1], RequestFaultError)
    assert "times in a row while it had this request" in str(found[-1])
    await llm.wait_for_engine()
    assert await answers(llm, MIXED[:3], adapter) == undisturbed[:3]
