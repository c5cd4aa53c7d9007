"""Several engines of one model after `AsyncLLM` and `LLM`: shared out, pinned, killed, and the same tokens."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import pytest
import pytest_asyncio

from jaxllm import LLM, EngineConfig, RequestError, SamplingParams
from jaxllm.errors import QueueFullError, ScalingBusyError, ScalingTimeoutError
from jaxllm.serving.ipc.client import asynchronous, health
from jaxllm.serving.llm.async_llm import AsyncLLM

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "strict_compilation": True, "max_num_seqs": 4, "max_num_batched_tokens": 16,
    "data_parallel_size": 2, "num_gpu_blocks_override": 300, "kv_offloading_size": 0.05, "kv_offloading": "always",
}  # fmt: skip
LONG = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0.5, seed=1)
SEEDED = SamplingParams(max_tokens=20, temperature=1, seed=7, ignore_eos=True)
PROMPTS = [f"Tell me about the number {number}." for number in range(12)]


class Seen:
    """An observer that counts tokens by engine, and those that have come from its host memory."""

    def __init__(self) -> None:
        self.tokens = {0: 0, 1: 0}
        self.loaded = {0: 0, 1: 0}

    def observe(self, stats: Any, measured: Any, engine: int = 0) -> None:
        self.tokens[engine] += measured.generation_tokens
        self.loaded[engine] = stats.offload.hits


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    config = EngineConfig.from_options(OPTIONS)
    llm = await AsyncLLM.start(config, max_queued_requests=12, log_level="warning", max_restarts=10)
    yield llm
    await llm.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def text_of(llm: AsyncLLM, prompt: str, params: SamplingParams, **settings: Any) -> str:
    results = [output.outputs[0].text async for output in llm.generate(prompt, params, **settings)]
    return results[-1]


async def test_requests_are_shared_out_and_tokens_are_the_same(llm: AsyncLLM) -> None:
    seen = Seen()
    llm.observers.append(seen)
    # More than can run: 2 x 4, and 2 that wait.
    texts = await asyncio.gather(*(text_of(llm, prompt, SEEDED) for prompt in PROMPTS[:10]))
    llm.observers.remove(seen)
    assert min(seen.tokens.values()) > 0
    for engine in (0, 1):
        pinned = [await text_of(llm, prompt, SEEDED, data_parallel_rank=engine) for prompt in PROMPTS[:3]]
        assert pinned == texts[:3]


async def test_pinned_requests_stay_where_they_are_sent(llm: AsyncLLM) -> None:
    seen = Seen()
    llm.observers.append(seen)
    await asyncio.gather(*(text_of(llm, prompt, SEEDED, data_parallel_rank=1) for prompt in PROMPTS[:3]))
    llm.observers.remove(seen)
    assert seen.tokens[0] == 0 < seen.tokens[1]
    for rank in (2, -1):
        with pytest.raises(RequestError, match="must be between 0 and 1"):
            await text_of(llm, "a", SEEDED, data_parallel_rank=rank)


async def test_places_are_counted_together(llm: AsyncLLM) -> None:
    tasks = [asyncio.ensure_future(text_of(llm, prompt, LONG)) for prompt in PROMPTS[:8] + PROMPTS]
    await until(lambda: llm.num_unfinished == 20)
    with pytest.raises(QueueFullError, match="20 of 20 sequences are running or waiting"):
        await text_of(llm, "one too many", SEEDED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert llm.num_unfinished == 0


async def test_requests_of_one_that_dies_go_on(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (health, asynchronous):
        monkeypatch.setattr(module, "RESTART_WAIT_SECONDS", 120.0)  # as long as a start may take on a busy machine
    seen = Seen()
    llm.observers.append(seen)
    story = " ".join(map(str, range(200)))
    told = await text_of(llm, story, SEEDED, data_parallel_rank=1)
    pid = llm.engine_pids[0]
    pinned = asyncio.ensure_future(text_of(llm, "Once upon a time", LONG, data_parallel_rank=0))
    kept = asyncio.ensure_future(text_of(llm, "Once upon a time", LONG, data_parallel_rank=1))
    others = [asyncio.ensure_future(text_of(llm, "Once upon a time", LONG)) for _ in range(4)]
    await until(lambda: llm.num_unfinished == 6)
    first, second = llm.engines.engines
    assert len(first) + len(second) == 6  # how many each has depends on what the engines said of their load
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not first.health.is_up)
    # There is an engine all the time, and it takes what may move, and what is new.
    llm.check_health()
    assert (len(first), len(second)) == (1, 5)
    assert await text_of(llm, PROMPTS[0], SEEDED)
    assert not await llm.reset_prefix_cache(), "the other engine runs a request"
    texts = await asyncio.gather(kept, pinned, *others)
    assert len(set(texts)) == 1
    # The other engine had room for three of them, so that a prompt of before comes from its host memory.
    before = seen.loaded[1]
    assert await text_of(llm, story, SEEDED, data_parallel_rank=1) == told
    llm.observers.remove(seen)
    assert seen.loaded[1] >= before + 64
    assert await text_of(llm, PROMPTS[0], SEEDED, data_parallel_rank=0), "it waits for the next one"
    assert llm.engine_pids[0] != pid
    await until(lambda: llm.num_unfinished == 0)
    assert await llm.reset_prefix_cache()


async def test_engines_are_added_and_removed_while_requests_run(llm: AsyncLLM) -> None:
    scaling, members = llm.engines.scaling, llm.engines.members
    wanted = [await text_of(llm, prompt, SEEDED) for prompt in PROMPTS]
    first = [asyncio.ensure_future(text_of(llm, prompt, SEEDED)) for prompt in PROMPTS[:8]]
    await scaling.scale(3, 60)
    assert await text_of(llm, PROMPTS[0], SEEDED, data_parallel_rank=2) == wanted[0]
    long = asyncio.ensure_future(text_of(llm, "a", LONG, data_parallel_rank=2))
    await until(lambda: len(members.all[2]) == 1)
    then = [asyncio.ensure_future(text_of(llm, prompt, SEEDED)) for prompt in PROMPTS]
    late = asyncio.ensure_future(scaling.scale(1, 0.1))
    await until(lambda: scaling.target == 1)
    with pytest.raises(ScalingBusyError, match="scaling to 1 engines is in progress"):
        await scaling.scale(2, 60)
    with pytest.raises(ScalingTimeoutError, match="requests of the engines to be stopped are still running"):
        await late
    assert (members.size, len(members.all), scaling.target) == (3, 3, None)
    await scaling.scale(2, 60)
    assert long.done(), "what runs there is waited for"
    assert await long
    assert len(llm.engine_pids) == 2
    assert await asyncio.gather(*first) == wanted[:8]
    assert await asyncio.gather(*then) == wanted
    for size in (0, -1, 65):
        with pytest.raises(RequestError, match="must be 1 to 64"):
            await scaling.scale(size, 1)


async def test_offline_it_is_the_same_too(llm: AsyncLLM) -> None:
    wanted = [await text_of(llm, prompt, SEEDED) for prompt in PROMPTS[:4]]
    with LLM(**OPTIONS) as offline:
        outputs = offline.generate(PROMPTS, SEEDED, use_tqdm=False)
        assert [output.outputs[0].text for output in outputs[:4]] == wanted
        assert len({tuple(output.outputs[0].token_ids) for output in outputs}) > 1
        with closing(offline.stream(PROMPTS[0], LONG)) as deltas:
            next(deltas)
        assert offline.reset_prefix_cache()
