"""`AsyncLLM` with a pooling model: many texts on one event loop, and those nobody waits for any more."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from jaxllm import AsyncLLM, PoolingParams
from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError, QueueFullError, RequestError
from tests.jaxllm.pooling.driving import CACHED, QUICK

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    config = EngineConfig.from_options({"model": "demo", "runner": "pooling", "max_model_len": 64, **QUICK, **CACHED})
    made = await AsyncLLM.start(config, max_queued_requests=24)
    yield made
    await made.shutdown()


async def _embed(llm: AsyncLLM, text: str) -> np.ndarray:
    (result,) = [each async for each in llm.encode(text, PoolingParams(task="embed"))]
    return result.outputs.data


async def test_many_at_once(llm: AsyncLLM) -> None:
    texts = [f"{number} apples" for number in range(20)]
    found = await asyncio.gather(*(_embed(llm, text) for text in texts))
    for text, vector in zip(texts[:3], found, strict=False):
        np.testing.assert_allclose(vector, await _embed(llm, text), atol=1e-6)
    assert llm.num_unfinished == 0


async def test_who_leaves_takes_the_texts_along(llm: AsyncLLM) -> None:
    requests = await llm.prepare_texts(["cat " * 50] * 20, PoolingParams(), [f"left-{index}" for index in range(20)])
    waiting = asyncio.create_task(llm.pool(requests))
    await asyncio.sleep(0)
    assert llm.num_unfinished == 20
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert llm.num_unfinished == 0
    assert (await _embed(llm, "still there")).shape == (128,)


async def test_refused(llm: AsyncLLM) -> None:
    with pytest.raises(RequestError, match="this is a pooling model"):
        await anext(llm.generate("Once"))
    requests = await llm.prepare_texts(["a"] * 33, PoolingParams(), [str(index) for index in range(33)])
    with pytest.raises(QueueFullError):
        await llm.pool(requests)
    with pytest.raises(RequestError, match="request_id='0' is in use"):
        await llm.pool(requests[:1] * 2)
    assert llm.num_unfinished == 0


async def test_when_the_engine_dies(llm: AsyncLLM) -> None:
    requests = await llm.prepare_texts(["cat " * 50] * 20, PoolingParams(), [f"lost-{index}" for index in range(20)])
    waiting = asyncio.create_task(llm.pool(requests))
    await asyncio.sleep(0)
    os.kill(llm.engine_pids[0], signal.SIGKILL)
    with pytest.raises(EngineError, match="engine process died"):
        await waiting
