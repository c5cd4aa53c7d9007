"""Control calls, and what clients know of engines that compute nothing. The processes are never started."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxllm import EngineConfig, EngineError, RequestError
from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import StepStats
from jaxllm.requests.owners import NOBODY
from jaxllm.serving.ipc.client.asynchronous import AsyncEngine
from jaxllm.serving.ipc.client.connection import EngineHandle
from jaxllm.serving.ipc.client.control import called
from jaxllm.serving.ipc.client.group import EngineGroup
from jaxllm.serving.ipc.client.members import GroupOptions
from jaxllm.serving.ipc.client.supervisor import STALE_WEIGHTS, EngineSupervisor
from jaxllm.serving.ipc.messages import Abort, Call, Called, Outputs
from jaxllm.serving.llm.async_control import AsyncControl
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.workers.shared_engine import SharedEngine
from jaxllm.serving.server.workers.shared_engines import SharedEngines
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.output_processor import OutputProcessor
from tests.serving.conftest import engine_info

DIED = EngineError("the engine process died: a test")


def never(*arguments: Any) -> EngineHandle:
    raise AssertionError(f"no process is to be started: {arguments}")


MakeGroup = Callable[[int], EngineGroup]


@pytest.fixture
def make_group() -> Iterator[MakeGroup]:
    """Makes groups of so many engines."""
    groups: list[EngineGroup] = []

    def make(size: int) -> EngineGroup:
        options = GroupOptions(
            size=size, routing="prefix", max_queued_requests=None, step_timeout=60, launch_of=lambda _: never,
            max_restarts=0, restart_window=1,
        )  # fmt: skip
        groups.append(EngineGroup(options))
        for engine in groups[-1].engines:
            engine.info = engine_info()  # as a start sets it
        return groups[-1]

    yield make
    for engine in (engine for group in groups for engine in group.engines):
        close(engine._supervisor)


def close(supervisor: EngineSupervisor) -> None:
    """Give back what a connection has before it starts."""
    supervisor.connection._woken.close()
    supervisor.connection._wake.close()


def tell(engine: AsyncEngine, *messages: Any) -> None:
    engine._take_events([(0, message) for message in messages])


async def sent(engine: AsyncEngine) -> list[Call]:
    """The messages since the last time; the process never takes them."""
    for _ in range(10):
        await asyncio.sleep(0)
    waiting = engine._supervisor.connection._queue._waiting
    messages = [waiting.pop(number) for number in list(waiting)]
    return [message for message in messages if isinstance(message, Call)]


async def test_the_answer_to_a_call_that_was_cancelled_is_dropped(make_group: MakeGroup) -> None:
    (engine,) = make_group(1).engines
    gone, other = (asyncio.ensure_future(engine.ask(called("is_paused"))) for _ in range(2))
    assert len(await sent(engine)) == 2
    gone.cancel()
    await asyncio.wait([gone])
    tell(engine, Called(0, False), Called(1, True), Called(2, True))
    assert await other is True


async def test_an_engine_that_ends_beside_a_cancelled_call_is_missed(make_group: MakeGroup) -> None:
    (engine,) = make_group(1).engines
    engine.serve(OutputProcessor(None))
    gone, other = (asyncio.ensure_future(engine.ask(called("is_paused"))) for _ in range(2))
    await sent(engine)
    gone.cancel()
    await asyncio.wait([gone])
    tell(engine, DIED)
    with pytest.raises(EngineError, match="a test"):
        await other
    assert engine.health.error is not None
    engine.close()


async def test_what_an_engine_says_of_itself_as_it_starts_is_kept(make_group: MakeGroup) -> None:
    (engine,) = make_group(1).engines
    # The others still start.
    tell(engine, Outputs([], StepStats(weights_problem="no weights")))
    assert engine.stats.halted == "no weights"
    # The supervisor hears of the restart after the engine has spoken.
    engine.take_restart(engine_info())
    assert engine.stats.halted == "no weights"
    engine.serve(OutputProcessor(None))
    tell(engine, DIED)
    assert not engine.stats.halted
    engine.close()


class Reader:
    """Keeps why its request ended."""

    def __init__(self, request: Any) -> None:
        self.request, self.error = request, ""

    def fail(self, error: EngineError) -> None:
        self.error = str(error)


class Requests:
    """Knows the names of requests, as an `OutputProcessor` does."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.num_queued_tokens = 0

    def add(self, request: Any, reader: Reader) -> None:
        self.names.append(request.request_id)

    def abort(self, names: list[str], reason: str) -> list[str]:
        self.names = [name for name in self.names if name not in names]
        return list(names)

    def interrupt(self, names: list[str], engine: int, reason: str) -> None:
        """Nothing is traced."""

    def running(self) -> dict[str, str]:
        return {name: name for name in self.names}

    def process(self, outputs: list[Any]) -> Any:
        return SimpleNamespace(stopped=[], aborted=[], refused=[], outputs=[], measurements=None)


def submit(group: EngineGroup, name: str) -> Reader:
    child = SimpleNamespace(request_id=name, prompt_token_ids=np.array([1], np.int32), owner=NOBODY)
    reader = Reader(SimpleNamespace(request_id=name, children=[child], reservation=None))
    group.submit([reader.request], [reader], lambda children: Abort([each.request_id for each in children]))
    return reader


def restarting(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> EngineGroup:
    """One engine with other weights than its checkpoint's, which is started again when it ends."""
    group = make_group(1)
    group.members.info = engine_info()
    monkeypatch.setattr(EngineSupervisor, "replace", lambda *_, **__: None)
    engine = group.engines[0]
    engine.serve(Requests())  # type: ignore[arg-type]
    tell(engine, Outputs([], StepStats(weights_version=1)))
    return group


async def test_no_request_waits_for_an_engine_that_will_need_weights(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = restarting(make_group, monkeypatch)
    (engine,) = group.engines
    lost = submit(group, "lost")
    tell(engine, DIED)
    assert "a test" in lost.error or "repeat the update" in lost.error
    # While it is started, and when it is there.
    for _ in range(2):
        with pytest.raises(EngineError, match="with all tensors") as caught:
            submit(group, "other")
        assert caught.value.retry_after
        with pytest.raises(EngineError):
            group.check_health()
        engine.take_restart(engine_info())
    tell(engine, Outputs([], StepStats(weights_version=1)))
    group.check_health()
    assert not submit(group, "cured").error
    engine.close()


async def test_requests_that_came_before_an_engine_says_what_it_needs_are_ended(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = restarting(make_group, monkeypatch)
    early = submit(group, "early")
    tell(group.engines[0], Outputs([], StepStats(weights_problem=STALE_WEIGHTS)))
    assert early.error == STALE_WEIGHTS
    with pytest.raises(EngineError, match="with all tensors"):
        group.check_health()
    group.engines[0].close()


async def test_a_server_with_one_good_engine_is_healthy(make_group: MakeGroup) -> None:
    group = make_group(2)
    group.engines[0].stats = StepStats(weights_problem="no weights")
    group.check_health()
    assert group._possible(None) == [1]


async def test_engines_of_one_server_that_are_added_need_the_weights_too(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(1)
    given: list[dict[str, Any]] = []

    async def start(_: EngineSupervisor, __: EngineConfig, **settings: Any) -> EngineInfo:
        given.append(settings)
        return engine_info()

    monkeypatch.setattr(EngineSupervisor, "start", start)
    group.members._config = EngineConfig()
    group.members._options.settings.update(log_level="info", json_logs=False)
    group.members.serve(Requests)  # type: ignore[arg-type]
    group.engines[0].mark_weights_stale()
    await group.members.grow(2)
    assert given[0]["stale_weights"] == STALE_WEIGHTS
    assert group.engines[1].stats.weights_problem == STALE_WEIGHTS
    for engine in group.engines:
        engine.close()


async def test_engines_that_are_added_wait_for_the_weights_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig.from_options({"data_parallel_size": 2})
    shared = SharedEngines(config, ServerOptions(), lambda _: never, print)
    shared._config, shared.metrics = config, Metrics(engine_info(), "demo", "jaxllm", 2, 0)
    started: list[bool] = []

    async def start(engine: SharedEngine, config: EngineConfig, **settings: Any) -> EngineInfo:
        started.append("stale_weights" in settings)
        return engine_info()

    monkeypatch.setattr(SharedEngine, "start", start)
    await shared.grow(3)
    shared._observe(0, StepStats(weights_version=1))
    # One that ends before it has answered is not left with the old weights either.
    assert all(each.has_other_weights for each in shared._engines)
    await shared.grow(4)
    assert started == [False, True]
    for each in shared._engines:
        close(each._supervisor)


@pytest.mark.parametrize("method", ["start_weight_update", "update_weights_from", "finish_weight_update"])
async def test_no_update_while_an_engine_would_miss_it(make_group: MakeGroup, method: Any) -> None:
    group = make_group(2)
    group.engines[1].health.suspend(DIED)
    with pytest.raises(EngineError, match="engine 1 is restarting"):
        await asyncio.wait_for(group.call(method), 10)
    assert not await sent(group.engines[0])


async def test_an_engine_that_ends_in_an_update_waits_for_the_weights(make_group: MakeGroup) -> None:
    group = make_group(2)
    updated = asyncio.ensure_future(group.call("update_weights_from"))
    for engine in group.engines:
        await sent(engine)
        assert engine.has_other_weights
        tell(engine, Called(0, refusal="is not a folder"))
    with pytest.raises(RequestError, match="is not a folder"):
        await updated
    assert not any(engine.has_other_weights for engine in group.engines)


async def test_an_update_that_is_cancelled_as_it_begins_is_abandoned(make_group: MakeGroup) -> None:
    group = make_group(2)
    updated = asyncio.ensure_future(AsyncControl(group).update_weights({"norm": np.ones(2)}))
    for engine in group.engines:
        assert [each.method for each in await sent(engine)] == ["start_weight_update"]
    updated.cancel()
    for engine in group.engines:
        assert [each.method for each in await sent(engine)] == ["abort_weight_update"]
        tell(engine, Called(0), Called(1))
    with pytest.raises(asyncio.CancelledError):
        await updated


async def test_an_update_that_is_refused_ends_no_other(make_group: MakeGroup) -> None:
    group = make_group(1)
    updated = asyncio.ensure_future(AsyncControl(group).update_weights({"norm": np.ones(2)}))
    await sent(group.engines[0])
    tell(group.engines[0], Called(0, refusal="has begun already"))
    with pytest.raises(RequestError, match="has begun already"):
        await updated
    assert not await sent(group.engines[0])


async def test_engines_are_told_that_it_is_the_same_pause(make_group: MakeGroup) -> None:
    (engine,) = (group := make_group(1)).engines
    paused = asyncio.ensure_future(AsyncControl(group).pause_generation(mode="wait"))
    for number, done in enumerate((False, False, True)):
        calls: list[Call] = []
        async with asyncio.timeout(60):
            while not calls:
                calls = await sent(engine)
        assert calls[0].arguments["again"] == (number > 0)
        tell(engine, Called(number, done))
    await paused


async def test_questions_make_the_router_forget_nothing(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group(1)
    forgotten: list[int] = []
    monkeypatch.setattr(group._router, "forget_prefixes", forgotten.append)
    for number, (method, count) in enumerate({"is_sleeping": 0, "is_paused": 0, "resume": 1}.items()):
        answer = asyncio.ensure_future(group.call(method))  # type: ignore[arg-type]
        await sent(group.engines[0])
        tell(group.engines[0], Called(number, False))
        await answer
        assert len(forgotten) == count
