"""Streams several texts at once on one event loop."""

import asyncio

from jaxllm import SamplingParams
from jaxllm.engine.arg_utils import AsyncEngineArgs
from jaxllm.sampling_params import RequestOutputKind
from jaxllm.v1.engine.async_llm import AsyncLLM

PROMPTS = ["Once upon a time", "Mira is", "The red fox"]


async def answer(engine: AsyncLLM, number: int, prompt: str) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=number, output_kind=RequestOutputKind.DELTA)
    async for output in engine.generate(prompt, params, request_id=f"request-{number}"):
        print(f"[{number}] {output.outputs[0].text!r}")


async def main() -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="demo"))
    try:
        await asyncio.gather(*(answer(engine, *each) for each in enumerate(PROMPTS)))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
