"""Requests that no engine has had yet go to one that lives. The processes are never started."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxllm import EngineError
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.ipc.client.asynchronous import AsyncEngine
from jaxllm.serving.ipc.client.connection import EngineConnection, EngineHandle
from jaxllm.serving.ipc.client.group import EngineGroup
from jaxllm.serving.ipc.client.members import GroupOptions
from jaxllm.serving.ipc.client.queues import request_ids
from jaxllm.serving.ipc.client.supervisor import EngineSupervisor
from jaxllm.serving.ipc.messages import Add
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.output_processor import OutputProcessor
from tests.serving.conftest import engine_info

DIED = EngineError("the engine process died: a test")


def no_process(*_: Any) -> EngineHandle:
    raise AssertionError("no process is to be started")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], EngineGroup]]:
    """Makes two engines; each is about to be started again once it has ended."""
    made: list[EngineConnection] = []
    connect = EngineSupervisor._connect

    def remembered(supervisor: EngineSupervisor) -> EngineConnection:
        made.append(connect(supervisor))
        return made[-1]

    async def never(*_: Any) -> None:
        """Another process is not started."""

    monkeypatch.setattr(EngineSupervisor, "_connect", remembered)
    monkeypatch.setattr(EngineSupervisor, "_restart", never)

    def make() -> EngineGroup:
        options = GroupOptions(
            size=2, routing="load", max_queued_requests=None, step_timeout=60, launch_of=lambda _: no_process,
            max_restarts=9, restart_window=60,
        )  # fmt: skip
        group = EngineGroup(options)
        for engine in group.engines:
            engine.info = engine_info()
        group.members.serve(lambda: OutputProcessor(None))
        return group

    yield make
    for connection in made:
        connection._woken.close()
        connection._wake.close()


def submit(group: EngineGroup, name: str, engine: int | None = None, n: int = 1) -> OutputStream:
    prompt, params = np.array([1, 2], np.int32), SamplingParams(n=n)
    children = [Request(request_id=f"{name}.{index}", prompt_token_ids=prompt, params=params) for index in range(n)]
    request = TextRequest(
        request_id=name, prompt=None, prompt_token_ids=prompt.tolist(), params=params, children=children
    )
    stream = OutputStream(request, group.drop)
    group.submit([request], [stream], Add.of, engine)
    return stream


def end(engine: AsyncEngine) -> None:
    engine._take_events([(engine._supervisor.generation, DIED)])


def waiting(engine: AsyncEngine) -> list[str]:
    """What waits to be sent to an engine."""
    queued = engine._supervisor.connection._queue._waiting.values()
    return [name for message in queued for name in request_ids(message)]


async def test_what_was_never_sent_goes_to_one_that_lives(group: Callable[[], EngineGroup]) -> None:
    first, second = (both := group()).engines
    streams = [submit(both, name, n=n) for name, n in (("a", 2), ("b", 1), ("c", 1))]
    streams.append(submit(both, "pinned", engine=0))
    before = {*waiting(first), *waiting(second)}
    assert {"a.0", "a.1", "pinned.0"} <= {*waiting(first)}
    end(first)
    assert waiting(first) == ["pinned.0"]
    assert {*waiting(second)} == before - {"pinned.0"}
    # One that asked for another engine is not in the way of what comes.
    assert submit(both, "d").request.request_id + ".0" in waiting(second)
    assert not any(stream.closed for stream in streams)
    for engine in (first, second):
        engine.close()


async def test_what_waits_for_an_engine_goes_to_the_first_that_is_back(
    group: Callable[[], EngineGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (both := group()).engines
    # The second one has this.
    monkeypatch.setattr(second._supervisor.connection._queue, "_transmit", lambda _: None)
    begun = submit(both, "begun", engine=1)
    both.engines[1]._requests._resumption._pinned.discard(begun)
    second._supervisor.connection._queue.open()
    assert not waiting(second)
    first.health.suspend(DIED)
    end(second)
    assert waiting(second) == ["begun.0"]
    assert (both.num_without_engine(), both.engine_state().num_waiting) == ([0, 1], 1)
    new = [submit(both, name) for name in "abcd"]
    assert len(waiting(first)) == 2
    first.take_restart(engine_info())
    assert {*waiting(first)} == {f"{name}.0" for name in "abcd"}
    assert waiting(second) == ["begun.0"]
    # Its start takes long.
    assert second.health.down is not None
    second._stop_waiting(second.health.down)
    assert "begun.0" in waiting(first)
    assert not waiting(second)
    assert not any(stream.closed or stream._error for stream in (begun, *new))
    for engine in (first, second):
        engine.close()
