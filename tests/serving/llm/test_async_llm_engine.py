"""`AsyncLLMEngine` on a real engine process, used as vLLM's programs use it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from jaxllm import AsyncEngineArgs, AsyncLLMEngine, ConfigError, EngineError, RequestError, SamplingParams
from jaxllm.lora.request import LoRARequest
from jaxllm.requests.sampling_params import RequestOutputKind
from tests.conftest import RunPython

pytestmark = pytest.mark.asyncio(loop_scope="module")

ARGS = AsyncEngineArgs("demo", optimization_level=0, max_num_seqs=4, max_num_batched_tokens=16)
PROMPT = "Once upon a time"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[AsyncLLMEngine]:
    made = AsyncLLMEngine.from_engine_args(ARGS)
    yield made
    ended = made.shutdown()
    assert ended is not None
    await ended
    with pytest.raises(EngineError, match="shut down"):
        await made.check_health()


async def collect(engine: AsyncLLMEngine, kind: RequestOutputKind, **values: Any) -> list[Any]:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, output_kind=kind, **values)
    return [each async for each in engine.generate(PROMPT, params, f"{kind.name}-{values}")]


async def test_results_are_of_the_kind_that_is_asked_for(engine: AsyncLLMEngine) -> None:
    (final,) = await collect(engine, RequestOutputKind.FINAL_ONLY, logprobs=0)
    whole = final.outputs[0]
    deltas = await collect(engine, RequestOutputKind.DELTA, logprobs=0)
    assert "".join(each.outputs[0].text for each in deltas) == whole.text
    assert sum(len(each.outputs[0].token_ids) for each in deltas) == 12
    results = await collect(engine, RequestOutputKind.CUMULATIVE, logprobs=0)
    assert len(results) > 1
    for index, result in enumerate(results):
        part = result.outputs[0]
        assert part.text == "".join(each.outputs[0].text for each in deltas)[: len(part.text)]
        assert whole.token_ids[: len(part.token_ids)] == part.token_ids
        assert len(part.logprobs) == len(part.token_ids)
        assert result.finished == (index == len(results) - 1)
        assert result.prompt == PROMPT
    assert (results[-1].outputs[0].text, results[-1].outputs[0].token_ids) == (whole.text, whole.token_ids)
    assert [len(each.outputs[0].token_ids) for each in results] == sorted(
        {len(each.outputs[0].token_ids) for each in results}
    ), "no result is changed by those behind it"


async def test_the_last_result_has_all_sequences(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=8, ignore_eos=True)
    results = [each async for each in engine.generate(PROMPT, params, "three")]
    assert [each.index for each in results[-1].outputs] == [0, 1, 2]
    assert {each.finish_reason for each in results[-1].outputs} == {"length"}
    assert all(len(each.token_ids) == 8 for each in results[-1].outputs)


async def test_aborting(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    stream = await engine.add_request("long", PROMPT, params)
    await anext(stream)
    assert engine.get_num_unfinished_requests() == 1
    await engine.abort("long")
    rest = [each async for each in stream]
    assert rest[-1].outputs[0].finish_reason == "abort"
    assert engine.get_num_unfinished_requests() == 0


async def test_methods_are_vllms(engine: AsyncLLMEngine) -> None:
    await engine.check_health()
    assert engine.is_running
    assert not engine.is_stopped
    assert not engine.errored
    assert engine.get_tokenizer().decode(engine.tokenizer.encode("a story")) == "a story"
    assert await engine.reset_prefix_cache()
    await engine.do_log_stats()
    assert not await engine.is_tracing_enabled()
    with pytest.raises(RequestError, match="this engine takes no adapters, asked for 'sql'"):
        await anext(engine.generate(PROMPT, SamplingParams(), "adapter", LoRARequest("sql", 1, "somewhere")))


async def test_pauses_and_sleep_have_vllms_names(engine: AsyncLLMEngine) -> None:
    assert await engine.get_supported_tasks() == ("generate",)
    await engine.pause_generation(mode="keep")
    assert await engine.is_paused()
    await engine.resume_generation()
    assert not await engine.is_paused()
    assert not await engine.is_sleeping()
    with pytest.raises(RequestError, match="sleep mode is off"):
        await engine.sleep()
    assert await engine.get_weight_version() == "0"


async def test_who_waits_for_one_that_is_shut_down_gets_an_error() -> None:
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    engine = AsyncLLMEngine(ARGS.create_engine_config(), lambda _: never)
    waiting = asyncio.ensure_future(engine.check_health())
    await asyncio.sleep(0)
    leaving = asyncio.ensure_future(engine.check_health())
    await asyncio.sleep(0)
    ended = engine.shutdown()
    leaving.cancel()
    with pytest.raises(EngineError, match="shut down during start-up"):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await leaving
    for each in (ended, engine.shutdown()):
        assert each is not None, "it can be awaited before it has started"
        await each
    for shut_down in (False, True):
        other: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        engine = AsyncLLMEngine(ARGS.create_engine_config(), lambda _, start=other: start)  # type: ignore[misc]
        if shut_down:
            engine.shutdown()
        del engine
        await asyncio.sleep(0)
        assert other.cancelled(), "one that is dropped does not start"


async def test_one_that_is_dropped_behind_its_event_loop_says_nothing() -> None:
    """An error in `__del__` would be a warning, and fail the test."""

    async def start(_: Any) -> Any:
        await asyncio.Event().wait()

    async def make() -> AsyncLLMEngine:
        engine = AsyncLLMEngine(ARGS.create_engine_config(), start)
        await asyncio.sleep(0)
        return engine

    def drop(*, shut_down: bool) -> None:
        loop = asyncio.new_event_loop()
        engine = loop.run_until_complete(make())
        assert isinstance(engine._starting, asyncio.Task)
        engine._starting._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        if shut_down:
            assert engine.shutdown() is None

    for shut_down in (False, True):
        await asyncio.to_thread(drop, shut_down=shut_down)


async def test_wrong_options_are_found_when_it_is_made_and_wrong_models_by_the_first_request() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs=0"):
        AsyncLLMEngine.from_engine_args(AsyncEngineArgs("demo", max_num_seqs=0))
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs("./no-such-folder"))
    with pytest.raises(ConfigError, match="no-such-folder"):
        await anext(engine.generate(PROMPT, SamplingParams(), "1"))
    assert engine.errored
    assert isinstance(engine.dead_error, ConfigError)
    engine.shutdown()


@pytest.mark.slow
async def test_one_that_nobody_waits_for_ends(run_python: RunPython) -> None:
    """It starts where no event loop runs, and ends although nobody awaits its end."""
    code = """
import asyncio, os
from jaxllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs("demo", optimization_level=0, max_num_seqs=2))

async def main():
    async for output in engine.generate("Once", SamplingParams(max_tokens=4, ignore_eos=True), "1"):
        pass
    print(len(output.outputs[0].token_ids))
    engine.shutdown()
    return engine._llm.engine_pids

(pid,) = asyncio.run(main())
try:
    os.kill(pid, 0)
except ProcessLookupError:
    print("gone")
"""
    result = await asyncio.to_thread(run_python, "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["4", "gone"]
