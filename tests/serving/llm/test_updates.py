"""`AsyncLLM` and other weights: tensors that come asynchronously, and an engine that is started again afterwards."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxllm import EngineConfig, EngineError, SamplingParams
from jaxllm.serving.llm.async_llm import AsyncLLM

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "strict_compilation": True, "max_num_seqs": 4, "max_num_batched_tokens": 16,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


async def text_of(llm: AsyncLLM) -> str:
    texts = [output.outputs[0].text async for output in llm.generate("Once upon a time", GREEDY)]
    return texts[-1]


async def updated_when_it_is_back(llm: AsyncLLM, weights: dict[str, np.ndarray]) -> int:
    """As a client does: an update of an engine that is still starting is refused, and may be tried again."""
    async with asyncio.timeout(300):
        while True:
            try:
                return await llm.update_weights(weights)
            except EngineError as error:
                if "repeat the update once it is back" not in str(error):
                    raise
                await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_engine_that_is_started_again_asks_for_its_weights(demo_folder: Path) -> None:
    weights = load_file(demo_folder / "model.safetensors")
    random = np.random.default_rng(0)

    async def noisy() -> AsyncIterator[tuple[str, np.ndarray]]:
        for name, values in weights.items():
            wide = values.astype(np.float32)
            yield name, (wide + random.normal(0, 0.2, wide.shape)).astype(values.dtype)

    config = EngineConfig.from_options(OPTIONS)
    llm = await AsyncLLM.start(config, log_level="warning", max_restarts=2)
    try:
        before = await text_of(llm)
        assert await llm.update_weights(noisy()) == 1
        assert await text_of(llm) != before
        os.kill(llm.engine_pids[0], signal.SIGKILL)
        async with asyncio.timeout(300):
            while "was restarted" not in llm.state().weights_problem:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="with all tensors"):
            await text_of(llm)
        assert await updated_when_it_is_back(llm, weights) == 1
        assert await text_of(llm) == before
    finally:
        await llm.shutdown()
