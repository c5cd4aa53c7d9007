"""AsyncLLM on a real engine process: streams, aborts, limits, and what happens when the engine stops or dies."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from jaxllm import LLM, ConfigError, EngineConfig, EngineError, RequestError, RequestOutputKind, SamplingParams
from jaxllm.errors import QueueFullError
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "strict_compilation": True, "max_num_seqs": 4, "max_num_batched_tokens": 16,
}  # fmt: skip
LONG = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0.5, seed=1)


class Seen:
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.tokens = 0
        self.finished = 0

    def observe(self, stats: Any, measured: Any, engine: int = 0) -> None:
        self.running.append(stats.num_running)
        self.tokens += measured.generation_tokens
        self.finished += len(measured.finished)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    llm = await AsyncLLM.start(EngineConfig.from_options(OPTIONS), max_queued_requests=3, log_level="warning")
    yield llm
    await llm.shutdown()


async def collect(
    llm: AsyncLLM, prompt: Any, params: SamplingParams, *, stream: bool = True, **settings: Any
) -> list[RequestOutput]:
    """Deltas, or one result."""
    params = replace(params, output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY)
    return [output async for output in llm.generate(prompt, params, **settings)]


def assert_same(output: CompletionOutput, wanted: CompletionOutput) -> None:
    """Equal but for the rounding of log-probabilities: which requests share a step is not the same in both."""
    assert (output.text, output.token_ids) == (wanted.text, wanted.token_ids)
    assert (output.finish_reason, output.stop_reason) == (wanted.finish_reason, wanted.stop_reason)
    assert output.cumulative_logprob == pytest.approx(wanted.cumulative_logprob, abs=1e-3)
    assert output.logprobs is not None
    assert wanted.logprobs is not None
    for entries, others in zip(output.logprobs, wanted.logprobs, strict=True):
        assert entries.keys() == others.keys()
        for token, entry in entries.items():
            assert entry.logprob == pytest.approx(others[token].logprob, abs=1e-3)


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for something that happens soon; it fails the test when it does not."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_streams_and_whole_results_are_what_llm_gives(llm: AsyncLLM) -> None:
    prompts = ["Once upon a time", "Mira is", "2 + 3 ="]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, logprobs=1)
    with LLM(**OPTIONS) as here:
        expected = here.generate(prompts, params, use_tqdm=False)
    streamed = await asyncio.gather(*(collect(llm, prompt, params) for prompt in prompts))
    whole = await asyncio.gather(*(collect(llm, prompt, params, stream=False) for prompt in prompts))
    for outputs, (single,), wanted in zip(streamed, whole, expected, strict=True):
        assert_same(single.outputs[0], wanted.outputs[0])
        assert "".join(output.outputs[0].text for output in outputs) == wanted.outputs[0].text
        assert [token for output in outputs for token in output.outputs[0].token_ids] == wanted.outputs[0].token_ids
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert llm.num_unfinished == 0


async def test_what_a_busy_event_loop_cannot_take_merges_at_the_engine(llm: AsyncLLM) -> None:
    """However long it is busy, little waits for it afterwards."""
    steps = list[int]()

    class Steps:
        def observe(self, stats: Any, measured: Any, engine: int = 0) -> None:
            steps.append(stats.num_steps)

    observer = Steps()
    llm.observers.append(observer)
    stream = llm.generate("Once upon a time", LONG)
    output = await anext(stream)
    seen = len(steps)
    pause = 0.3
    while max(steps[seen:], default=0) <= 1 and not output.finished:
        time.sleep(pause)  # noqa: ASYNC251  (the event loop is to be busy)
        pause *= 2  # some hundred small messages find room on their way: a slow engine needs longer to fill it
        output = await anext(stream)
        await asyncio.sleep(0.1)
    assert max(steps[seen:], default=0) > 1
    await stream.aclose()
    llm.observers.remove(observer)


async def test_sequences_of_one_request_keep_apart(llm: AsyncLLM) -> None:
    params = SamplingParams(n=3, seed=3, max_tokens=12, ignore_eos=True)
    outputs = await collect(llm, "Once upon a time", params)
    (whole,) = await collect(llm, "Once upon a time", params, stream=False)
    for completion in whole.outputs:
        pieces = [piece for output in outputs for piece in output.outputs if piece.index == completion.index]
        assert "".join(piece.text for piece in pieces) == completion.text
        assert pieces[-1].finish_reason == "length"


async def test_who_stops_reading_frees_the_engine(llm: AsyncLLM) -> None:
    seen = Seen()
    llm.observers.append(seen)
    stream = llm.generate("Once upon a time", LONG)
    await anext(stream)
    assert llm.num_unfinished == 1
    await stream.aclose()
    assert llm.num_unfinished == 0
    assert await llm.reset_prefix_cache(), "a request still holds pages"
    llm.observers.remove(seen)


async def test_a_slow_reader_gets_all_in_fewer_pieces(llm: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    (whole,) = await collect(llm, "Once upon a time", params, stream=False)
    (request,) = await llm.prepare(["Once upon a time"], params, ["slow"], stream=True)
    (stream,) = llm.submit([request])
    with closing(stream):
        first = await anext(stream)
        await until(lambda: llm.num_unfinished == 0)
        rest = [output async for output in stream]
    assert len(rest) == 1
    assert first.outputs[0].text + rest[0].outputs[0].text == whole.outputs[0].text
    assert len(first.outputs[0].token_ids) + len(rest[0].outputs[0].token_ids) == 60


async def test_who_leaves_behind_the_end_ends_no_newer_request_of_that_name(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    streams = []
    for _ in range(2):
        (request,) = await llm.prepare(["Once upon a time"], params, ["again"], stream=True)
        streams += llm.submit([request])
        if len(streams) == 1:
            await until(lambda: llm.num_unfinished == 0)
    streams[0].close()
    async with asyncio.timeout(60):
        results = [output async for output in streams[1]]
    assert sum(len(output.outputs[0].token_ids) for output in results) == 20


async def test_a_full_queue_refuses_and_recovers(llm: AsyncLLM) -> None:
    requests = await llm.prepare(["Once upon a time"] * 8, LONG, [f"q{index}" for index in range(8)], stream=True)
    with pytest.raises(QueueFullError) as refused:
        llm.submit(requests)
    assert refused.value.retry_after > 0
    assert llm.num_unfinished == 0, "all or none"
    streams = llm.submit(requests[:7])
    with pytest.raises(QueueFullError):
        llm.submit(requests[7:])
    for stream in streams:
        stream.close()
    answer = await collect(llm, "Mira is", SamplingParams(max_tokens=3))
    assert answer[-1].finished


async def test_wrong_requests(llm: AsyncLLM) -> None:
    with pytest.raises(RequestError, match="max_model_len"):
        await collect(llm, [5] * 5000, LONG)
    (request,) = await llm.prepare(["a"], LONG, ["twice"])
    (stream,) = llm.submit([request])
    with pytest.raises(RequestError, match="in use"):
        llm.submit([request])
    stream.close()


async def test_long_texts_delay_nobody(llm: AsyncLLM) -> None:
    """While millions of characters are tokenized, a stream goes on. One text of as many is refused by its length."""
    texts = ["the cat sat on the mat " * 2_800] * 80
    preparing = asyncio.ensure_future(llm.prepare(texts, LONG, [f"long-{index}" for index in range(80)]))
    answers = await collect(llm, "Once upon a time", SamplingParams(max_tokens=8, ignore_eos=True))
    assert answers[-1].finished
    assert not preparing.done(), "the text was too short to show anything"
    with pytest.raises(RequestError, match="max_model_len"):
        await preparing


async def test_drain_waits_for_what_runs(llm: AsyncLLM) -> None:
    assert await llm.drain(0.0)
    task = asyncio.ensure_future(collect(llm, "Once upon a time", SamplingParams(max_tokens=30, ignore_eos=True)))
    await until(lambda: llm.num_unfinished == 1)
    assert not await llm.drain(0.0)
    assert await llm.drain(60.0)
    assert (await task)[-1].finished


async def test_ending_all_streams_with_an_error(llm: AsyncLLM) -> None:
    task = asyncio.ensure_future(collect(llm, "Once upon a time", LONG))
    await until(lambda: llm.num_unfinished == 1)
    llm.fail_all("the server is shutting down")
    with pytest.raises(EngineError, match="shutting down"):
        await task
    assert await llm.reset_prefix_cache()


async def test_aborting_one_request_leaves_those_named_by_its_characters(llm: AsyncLLM) -> None:
    # Long enough that all three are there at once on a busy machine.
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    tasks = {
        name: asyncio.ensure_future(collect(llm, "Once upon a time", params, request_id=name))
        for name in ("1", "0", "10")
    }
    await until(lambda: llm.num_unfinished == 3)
    llm.abort("10")
    assert llm.num_unfinished == 2
    assert [(await tasks[name])[-1].finished for name in ("1", "0")] == [True, True]
    (last,) = (await tasks["10"])[-1].outputs
    assert last.finish_reason == "abort"


@pytest.mark.parametrize("stream", [True, False])
async def test_whoever_reads_an_aborted_request_hears_of_it(llm: AsyncLLM, stream: bool) -> None:
    params = SamplingParams(max_tokens=1500, ignore_eos=True, n=2, temperature=0.5)
    task = asyncio.ensure_future(collect(llm, "Once", params, request_id="gone", stream=stream))
    beside = asyncio.ensure_future(collect(llm, "Once", SamplingParams(max_tokens=20, ignore_eos=True)))
    seen = Seen()
    llm.observers.append(seen)
    await until(lambda: seen.tokens > 20)
    llm.observers.remove(seen)
    llm.abort(["gone", "unknown"])
    async with asyncio.timeout(60):
        results = await task
    assert results[-1].finished
    assert {each.index: each.finish_reason for each in results[-1].outputs} == {0: "abort", 1: "abort"}
    assert all(any(each.outputs[at].text for each in results if at < len(each.outputs)) for at in (0, 1))
    assert (await beside)[-1].outputs[0].finish_reason == "length"
    assert llm.num_unfinished == 0
    async with asyncio.timeout(60):
        # The engine knows of nothing either.
        while not await llm.reset_prefix_cache():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_observers_see_every_token(llm: AsyncLLM) -> None:
    # What is aborted is told with the next outputs: none of an earlier test's are still to come after this.
    await collect(llm, "Mira is", SamplingParams(max_tokens=1))
    seen = Seen()
    llm.observers.append(seen)
    # Handed over at once: on a busy machine a task of its own may bring the third when the first has all its tokens.
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    requests = await llm.prepare(["Mira is"] * 3, params, ["one", "two", "three"], stream=True)
    for stream in llm.submit(requests):
        _ = [output async for output in stream]
    llm.observers.remove(seen)
    assert (seen.tokens, seen.finished, max(seen.running)) == (300, 3, 3)


async def test_an_idle_engine_sleeps(llm: AsyncLLM) -> None:
    await asyncio.sleep(0.2)

    def cpu_seconds() -> float:
        with open(f"/proc/{llm.engine_pids[0]}/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = cpu_seconds()
    await asyncio.sleep(3)
    assert cpu_seconds() - before <= 0.03, "more than 1 % of a core for nothing"


async def test_an_engine_that_pauses_answers_everybody_afterwards(llm: AsyncLLM) -> None:
    """However many clients come and go meanwhile: what they send fits no socket."""
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    os.kill(llm.engine_pids[0], signal.SIGSTOP)
    try:
        waiting = [asyncio.ensure_future(collect(llm, "Mira is", params)) for _ in range(3)]
        await until(lambda: llm.num_unfinished == 3)
        for number in range(12_000):
            (request,) = await llm.prepare(["Once upon a time"], LONG, [f"gone-{number}"], stream=True)
            llm.submit([request])[0].close()
        waiting += [asyncio.ensure_future(collect(llm, "Mira is", params)) for _ in range(3)]
        await until(lambda: llm.num_unfinished == 6)
    finally:
        os.kill(llm.engine_pids[0], signal.SIGCONT)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*waiting)
    assert all(result[-1].finished for result in results)
    assert llm.num_unfinished == 0
    llm.check_health()


class Broken:
    """An observer with a defect."""

    def observe(self, stats: Any, measured: Any, engine: int = 0) -> None:
        raise ZeroDivisionError("a defect")


async def test_a_defect_where_results_are_read_leaves_nobody_waiting(llm: AsyncLLM) -> None:
    broken = Broken()
    llm.observers.append(broken)
    try:
        with pytest.raises(EngineError, match="a defect"):
            await asyncio.wait_for(collect(llm, "Once upon a time", LONG), 60)
    finally:
        llm.observers.remove(broken)
    assert (await collect(llm, "Once upon a time", SamplingParams(max_tokens=3)))[-1].finished


async def test_wrong_options_are_found_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no-such-folder"):
        await AsyncLLM.start(EngineConfig.from_options({"model": "./no-such-folder"}), log_level="critical")


# The last: nothing works afterwards.
async def test_the_engine_is_killed(llm: AsyncLLM) -> None:
    tasks = [asyncio.ensure_future(collect(llm, "Once upon a time", LONG)) for _ in range(6)]
    await until(lambda: llm.num_unfinished == 6)
    os.kill(llm.engine_pids[0], signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineError) and "SIGKILL" in str(result) for result in results)
    with pytest.raises(EngineError, match="SIGKILL"):
        llm.check_health()
    with pytest.raises(EngineError, match="SIGKILL"):
        await collect(llm, "Mira is", LONG)
    await llm.shutdown()
