"""Two engines that publish events: a prompt goes where its prefix is, after eviction and after a restart."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from jaxllm import EngineConfig, SamplingParams
from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.llm.async_llm import AsyncLLM

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "strict_compilation": True, "max_num_seqs": 4, "max_num_batched_tokens": 16,
    "data_parallel_size": 2, "num_gpu_blocks_override": 40, "data_parallel_routing": "prefix", "max_model_len": 512,
    "kv_events_config": {
        "enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", "buffer_steps": 1000,
    },
}  # fmt: skip
ONE = SamplingParams(max_tokens=1, temperature=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_HOST_IP", "127.0.0.1")
        llm = await AsyncLLM.start(EngineConfig.from_options(OPTIONS), log_level="warning", max_restarts=2)
        yield llm
        await llm.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def prompt(number: int, length: int = 80) -> list[int]:
    return np.random.default_rng(number).integers(5, 300, length).tolist()


def homes(llm: AsyncLLM, token_ids: list[int]) -> dict[int, int]:
    """Tokens that each engine has, as the router knows."""
    prefixes = llm.engines._router.prefixes
    assert prefixes is not None
    return prefixes.shared(Prompt(token_ids=np.array(token_ids, np.int32)), [0, 1])


async def cached(llm: AsyncLLM, token_ids: list[int], **settings: Any) -> int:
    """The prompt tokens that the engine found which got the prompt."""
    outputs = [output async for output in llm.generate({"prompt_token_ids": token_ids}, ONE, **settings)]
    assert outputs[-1].num_cached_tokens is not None
    return outputs[-1].num_cached_tokens


async def test_a_prompt_goes_where_its_prefix_is(llm: AsyncLLM) -> None:
    prefixes = llm.engines._router.prefixes
    assert prefixes is not None
    await until(lambda: all(prefixes.num_blocks(engine) is not None for engine in (0, 1)))
    for engine in (0, 1):
        await cached(llm, prompt(engine), data_parallel_rank=engine)
    for number in (0, 1, 1, 0):
        await until(lambda number=number: homes(llm, prompt(number)) == {number: 80})  # type: ignore[misc]
        assert await cached(llm, [*prompt(number), 7]) == 80

    # Other prompts take its pages, so the other engine computes it.
    for number in range(10, 13):
        await cached(llm, prompt(number, 320), data_parallel_rank=0)
    await until(lambda: homes(llm, prompt(0)) == {})
    await cached(llm, prompt(0), data_parallel_rank=1)
    await until(lambda: homes(llm, prompt(0)) == {1: 80})
    assert await cached(llm, [*prompt(0), 8]) == 80

    # An engine that was started again has nothing, and tells of what it computes from then on.
    dying = llm.engines.engines[1]
    os.kill(dying.pid, signal.SIGKILL)
    await until(lambda: prefixes.num_blocks(1) is None)
    await until(lambda: dying.health.is_up and prefixes.num_blocks(1) is not None)
    assert homes(llm, prompt(0)) == homes(llm, prompt(1)) == {}
    await cached(llm, prompt(1), data_parallel_rank=1)
    await until(lambda: homes(llm, prompt(1)) == {1: 80})
    assert await cached(llm, [*prompt(1), 9]) == 80
