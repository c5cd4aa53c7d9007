"""Several engines, each in stages: the tokens of one engine, and what is left of requests when it dies or hangs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from jaxllm import LLM, EngineConfig, SamplingParams
from jaxllm.serving.llm.async_llm import AsyncLLM

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "layer_stack": "scan", "max_num_seqs": 4, "max_num_batched_tokens": 16,
    "num_gpu_blocks_override": 300,
}  # fmt: skip
GREEDY = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
PROMPT = "Once upon a time"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    config = EngineConfig.from_options(OPTIONS | {"data_parallel_size": 2, "pipeline_parallel_size": 2})
    llm = await AsyncLLM.start(config, max_restarts=20, step_timeout=5.0, log_level="warning")
    yield llm
    await llm.shutdown()


async def tokens(llm: AsyncLLM, rank: int) -> list[int]:
    outputs = [output async for output in llm.generate(PROMPT, GREEDY, data_parallel_rank=rank)]
    return list(outputs[-1].outputs[0].token_ids)


async def test_each_engine_has_its_stages(llm: AsyncLLM) -> None:
    with LLM("demo", **OPTIONS) as one:
        expected = list(one.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids)
    found = list(await asyncio.gather(tokens(llm, 0), tokens(llm, 1)))
    assert found == [expected, expected]


@pytest.mark.parametrize(
    ("how", "reason"), [(signal.SIGKILL, "SIGKILL"), pytest.param(signal.SIGSTOP, "hang", marks=pytest.mark.exhaustive)]
)
async def test_an_engine_in_stages_that_dies_or_hangs(llm: AsyncLLM, how: signal.Signals, reason: str) -> None:
    """Its requests go on in the next one, and those of the other one do not notice."""
    async with asyncio.timeout(300):
        await llm.wait_for_engine()
        expected = await tokens(llm, 1)
        stream = llm.generate(PROMPT, LONG, data_parallel_rank=0)
        await anext(stream)
        pid = llm.engine_pids[0]
        os.kill(pid, how)
        rest = asyncio.ensure_future(anext(stream))
        while (down := llm.engines.engines[0].health.down) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert reason in str(down)
        assert await tokens(llm, 1) == expected
        await rest
        last = [output async for output in stream][-1]
        assert last.outputs[0].token_ids[:16] == expected
        assert len(last.outputs[0].token_ids) == 1500
        assert await tokens(llm, 0) == expected
        assert llm.engine_pids[0] != pid
