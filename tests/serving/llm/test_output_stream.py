"""Streams of results: nothing is lost or doubled, however slowly they are read."""

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import EngineError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, Logprob, RequestOutput


def make_stream(closed: list[OutputStream] | None = None) -> OutputStream:
    request = TextRequest(request_id="r", prompt="p", prompt_token_ids=[1], params=SamplingParams(), children=[])
    return OutputStream(request, (closed if closed is not None else []).append)


def delta(index: int, token: int, *, last: bool = False, finished: bool = False) -> RequestOutput:
    completion = CompletionOutput(
        index, f"<{token}>", [token], -float(token), [{token: Logprob(-1.0)}], "stop" if last else None
    )
    return RequestOutput("r", "p", [1], [completion], finished)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
def test_what_is_read_is_what_was_put(events: list[tuple[int, bool]]) -> None:
    """An event is a token of a sequence, and whether the reader reads before the next."""

    async def run() -> tuple[dict[int, Any], dict[int, Any], int]:
        stream = make_stream()
        put: dict[int, Any] = {0: [], 1: [], 2: []}
        got: dict[int, Any] = {0: [], 1: [], 2: []}
        reads = 0

        async def read() -> None:
            for completion in (await anext(stream)).outputs:
                assert completion.text == "".join(f"<{token}>" for token in completion.token_ids)
                assert completion.logprobs is not None
                assert [next(iter(item)) for item in completion.logprobs] == completion.token_ids
                got[completion.index] += completion.token_ids

        for number, (index, reads_now) in enumerate(events):
            put[index].append(number)
            stream.put(delta(index, number))
            if reads_now:
                await read()
                reads += 1
        put[0].append(1000)
        stream.put(delta(0, 1000, last=True, finished=True))
        await read()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return put, got, reads

    put, got, _ = asyncio.run(run())
    assert got == put


async def test_an_error_comes_after_the_results_that_wait() -> None:
    stream = make_stream()
    stream.put(delta(0, 1))
    stream.fail(EngineError("died"))
    assert (await anext(stream)).outputs[0].token_ids == [1]
    with pytest.raises(EngineError, match="died"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_aborts_once_and_only_what_is_unfinished() -> None:
    closed: list[OutputStream] = []
    stream = make_stream(closed)
    stream.put(delta(0, 1))
    stream.close()
    stream.close()
    assert closed == [stream]
    finished = make_stream(closed)
    finished.put(delta(0, 1, last=True, finished=True))
    await anext(finished)
    finished.close()
    assert closed == [stream]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


class GatedSink:
    """The results that a reader and its sinks got, by sequence; the sinks take results while `taking`."""

    def __init__(self) -> None:
        self.taking = True
        self.got: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def keep(self, output: RequestOutput) -> None:
        for completion in output.outputs:
            self.got[completion.index] += completion.token_ids

    def take(self, output: RequestOutput) -> bool:
        if self.taking:
            self.keep(output)
        return self.taking

    def take_text(self, index: int, text: str, token_ids: list[int]) -> bool:
        assert text == "".join(f"<{token}>" for token in token_ids)
        if self.taking:
            self.got[index] += token_ids
        return self.taking


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=30), st.booleans())
def test_with_a_sink_nothing_is_lost_doubled_or_out_of_order(
    events: list[tuple[int, bool, bool]], takes_the_last: bool
) -> None:
    """An event is a token, whether the sink takes results from then on, and whether the event loop turns before it."""

    async def run() -> tuple[dict[int, list[int]], bool]:
        stream, sink = make_stream(), GatedSink()

        async def read() -> None:
            async for output in stream:
                # As a connection that takes nothing more for a while.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                sink.keep(output)

        stream.sink, stream.text_sink = sink.take, sink.take_text
        reading = asyncio.ensure_future(read())
        for number, (index, takes, turns) in enumerate(events):
            if turns:
                await asyncio.sleep(0)
            sink.taking = takes
            if not stream.put_text(index, f"<{number}>", [number]):
                stream.put(delta(index, number))
        sink.taking = takes_the_last
        stream.put(delta(0, 1000, last=True, finished=True))
        await asyncio.wait_for(reading, 10)
        return sink.got, stream.closed

    got, closed = asyncio.run(run())
    want: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number, (index, _, _) in enumerate(events):
        want[index].append(number)
    want[0].append(1000)
    assert got == want
    assert closed


async def test_a_sink_is_not_called_once_its_reader_has_left() -> None:
    stream, taken = make_stream(), list[RequestOutput]()

    def sink(output: RequestOutput) -> bool:
        taken.append(output)
        return True

    stream.sink = sink
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.put(delta(0, 1))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    stream.put(delta(0, 2))
    assert [output.outputs[0].token_ids for output in taken] == [[1]]
    assert (await anext(stream)).outputs[0].token_ids == [2]


async def test_an_error_comes_behind_what_the_sink_took() -> None:
    stream = make_stream()
    stream.sink = lambda output: True
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.put(delta(0, 1))
    stream.fail(EngineError("dead"))
    with pytest.raises(EngineError, match="dead"):
        await reading


async def test_a_stream_that_failed_is_gone_with_its_reader() -> None:
    """Also before any garbage is collected: thousands may fail in a second."""

    async def read() -> "weakref.ref[OutputStream]":
        stream = make_stream()
        stream.fail(EngineError("it died"))
        with suppress(EngineError):
            await anext(stream)
        return weakref.ref(stream)

    gc.disable()
    try:
        assert (await read())() is None
    finally:
        gc.enable()
