"""`AsyncLLM` that restarts its engine: messages lost on a real socket, crashes while requests come, and the end."""

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import zmq

from jaxllm import EngineConfig, EngineError, SamplingParams
from jaxllm.serving.ipc.messages import Abort
from jaxllm.serving.ipc.wire import FrameEncoder
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.text.outputs import RequestOutput

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS: dict[str, Any] = {
    "optimization_level": 0, "strict_compilation": True, "max_num_seqs": 4, "max_num_batched_tokens": 16,
}  # fmt: skip
LONG = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0.5, seed=1)
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm() -> AsyncIterator[AsyncLLM]:
    llm = await AsyncLLM.start(EngineConfig.from_options(OPTIONS), max_restarts=20, log_level="warning")
    yield llm
    await llm.shutdown()


async def collect(llm: AsyncLLM, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in llm.generate("Once upon a time", params)]


async def until(condition: Any, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Lossy:
    """A socket on which the next message is lost, or replaced by an empty one with its number."""

    def __init__(self, socket: zmq.Socket[bytes], *, replace: bool) -> None:
        self._socket, self._replace = socket, replace
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send_multipart(self, frames: list[bytes], *arguments: Any, **settings: Any) -> None:
        self.lost += 1
        if self.lost > 1:
            self._socket.send_multipart(frames, *arguments, **settings)
        elif self._replace:
            header = bytes(frames[0][: struct.calcsize("<QQ")])
            self._socket.send_multipart([header + FrameEncoder().encode(Abort([]))[0]])


def lose_next(llm: AsyncLLM, *, replace: bool) -> Lossy:
    connection = llm.engines.engines[0]._supervisor.connection
    lossy = Lossy(connection._input, replace=replace)
    connection._input = lossy  # type: ignore[assignment]
    return lossy


async def test_a_lost_message_is_noticed_by_its_number(llm: AsyncLLM) -> None:
    """An engine that misses a message ends, and the next one goes on with everything."""
    other = asyncio.ensure_future(collect(llm, LONG))
    await until(lambda: llm.num_unfinished == 1)
    pid = llm.engine_pids[0]
    lossy = lose_next(llm, replace=False)
    lost = asyncio.ensure_future(collect(llm, LONG))
    await until(lambda: lossy.lost)
    # With nothing else to say, this would be the question about the requests in flight.
    behind = asyncio.ensure_future(collect(llm, SHORT))
    async with asyncio.timeout(120):
        texts = [(await task)[-1].outputs[0].text for task in (lost, other)]
        assert texts[0] == texts[1]
        assert (await behind)[-1].finished
    await llm.wait_for_engine()
    assert (await collect(llm, SHORT))[-1].finished
    assert llm.engine_pids[0] != pid


async def test_a_request_that_the_engine_does_not_know_fails_alone(llm: AsyncLLM) -> None:
    pid = llm.engine_pids[0]
    lossy = lose_next(llm, replace=True)
    lost = asyncio.ensure_future(collect(llm, LONG))
    await until(lambda: lossy.lost)
    other = asyncio.ensure_future(collect(llm, SHORT))
    with pytest.raises(EngineError, match="lost on the way"):
        async with asyncio.timeout(60):
            await lost
    assert (await other)[-1].finished
    llm.check_health()
    assert (llm.engine_pids[0], llm.num_unfinished) == (pid, 0)


async def test_what_ends_with_an_engine_is_counted_as_an_error(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.engines.state.crashes, "most", 0)
    ended: list[str] = []

    class Seen:
        def observe(self, stats: Any, measured: Any, engine: int = 0) -> None:
            ended.extend(each.reason for each in (measured.finished if measured else ()))

    await llm.wait_for_engine()
    # What ended before is reported with the next result: that is not to be counted here.
    await collect(llm, SHORT)
    seen = Seen()
    llm.observers.append(seen)
    try:
        stream = llm.generate("Once upon a time", LONG)
        await anext(stream)
        os.kill(llm.engine_pids[0], signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            [output async for output in stream]
        await llm.wait_for_engine()
        assert (await collect(llm, SHORT))[-1].finished
        assert (ended.count("error"), ended.count("abort")) == (1, 0)
    finally:
        llm.observers.remove(seen)


async def test_a_request_that_only_the_engine_knows_is_ended(llm: AsyncLLM) -> None:
    running: list[int] = []

    class Seen:
        def observe(self, stats: Any, measured: Any, engine: int = 0) -> None:
            running.append(stats.num_running)

    seen = Seen()
    llm.observers.append(seen)
    try:
        stream = llm.generate("Once upon a time", LONG)
        await anext(stream)
        lossy = lose_next(llm, replace=True)
        await stream.aclose()
        assert lossy.lost == 1, "the abort was lost"
        assert llm.num_unfinished == 0
        await until(lambda: running[-1] == 0)
        assert await llm.reset_prefix_cache()
    finally:
        llm.observers.remove(seen)


async def test_what_was_not_sent_yet_goes_to_the_next_engine(llm: AsyncLLM) -> None:
    await llm.wait_for_engine()
    os.kill(llm.engine_pids[0], signal.SIGKILL)
    await until(lambda: llm.engines.engines[0].health.down is not None)
    with pytest.raises(EngineError, match="SIGKILL"):
        llm.check_health()
    results = await asyncio.gather(*(collect(llm, SHORT) for _ in range(8)), return_exceptions=True)
    for result in results:
        # A machine that is busy may take longer than requests wait.
        late = isinstance(result, EngineError) and result.retry_after == 1.0
        assert late or (isinstance(result, list) and result[-1].finished), result
    await llm.wait_for_engine()
    assert (await collect(llm, SHORT))[-1].finished


async def test_it_dies_twice_and_while_requests_are_added(llm: AsyncLLM) -> None:
    over = False
    ends: list[Any] = []

    async def load() -> None:
        while not over:
            await llm.wait_for_engine()
            ends.append((await collect(llm, SHORT))[-1].finished)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(6):
            tasks.create_task(load())
        for _ in range(2):
            begun = len(ends)
            await until(lambda: ends[begun:].count(True) >= 10)  # noqa: B023
            pid = llm.engine_pids[0]
            os.kill(pid, signal.SIGKILL)
            await until(lambda: llm.engines.engines[0].health.down is not None)
            await llm.wait_for_engine()
        begun = len(ends)
        await until(lambda: ends[begun:].count(True) >= 10)
        over = True
    assert llm.num_unfinished == 0
    assert all(ends)


async def test_an_engine_that_hangs_is_replaced(llm: AsyncLLM) -> None:
    await llm.wait_for_engine()
    heartbeat = llm.engines.engines[0]._heartbeat
    task = asyncio.ensure_future(collect(llm, LONG))
    await until(lambda: llm.num_unfinished == 1)
    pid = llm.engine_pids[0]
    limit, heartbeat.limit = heartbeat.limit, 1.5
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: llm.engines.engines[0].health.down is not None)
    assert "the engine hangs" in str(llm.engines.engines[0].health.down)
    heartbeat.limit = limit
    assert (await task)[-1].finished
    assert llm.engine_pids[0] != pid


async def test_no_more_restarts() -> None:
    # What is read of the stream may have come from the engine before: the request shall not count as a suspect.
    options = EngineConfig.from_options(OPTIONS)
    llm = await AsyncLLM.start(options, max_restarts=1, max_request_crashes=9, log_level="critical")
    try:
        stream = llm.generate("Once upon a time", LONG)
        for _ in range(2):
            await llm.wait_for_engine()
            await anext(stream)
            os.kill(llm.engine_pids[0], signal.SIGKILL)
            await until(lambda: not llm.engines.engines[0].health.is_up)
        with pytest.raises(EngineError, match="SIGKILL"):
            [output async for output in stream]
        assert "1 restarts within 600 s" in str(await llm.loss)
        with pytest.raises(EngineError, match="SIGKILL"):
            llm.check_health()
        with pytest.raises(EngineError, match="SIGKILL"):
            await llm.wait_for_engine()
    finally:
        await llm.shutdown()
