"""The stream of the live view: one task for all who look, none for nobody, and a bound."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jaxllm.engine.step_log import StepRecord
from jaxllm.engine.views import LiveView
from jaxllm.errors import QueueFullError
from jaxllm.serving.telemetry.histogram import Histogram
from jaxllm.serving.ui import live


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The snapshots that were taken."""
    numbers: list[int] = []

    def snapshot(*_: Any) -> Any:
        numbers.append(len(numbers))
        return live.Opening(len(numbers), {})

    async def no_views(_: Any) -> dict[int, Any]:
        return {}

    monkeypatch.setattr(live, "snapshot", snapshot)
    monkeypatch.setattr(live, "live_views", no_views)
    monkeypatch.setattr(live, "INTERVAL", 0.01)
    return numbers


def feed() -> tuple[live.LiveFeed, Any]:
    names = ("time_to_first_token_seconds", "inter_token_latency_seconds")
    engine = SimpleNamespace(histograms={name: Histogram([1.0]) for name in names})
    server: Any = SimpleNamespace(accepting=True, metrics=SimpleNamespace(engines=[engine]))
    return live.LiveFeed(server), server


async def test_all_who_look_share_the_snapshots_and_nobody_costs_nothing(taken: list[int]) -> None:
    made, _ = feed()
    await asyncio.sleep(0.05)
    assert taken == []
    first, second = made.events(), made.events()
    assert b'"bounds"' in await anext(first)
    assert b'"bounds"' in await anext(second)
    seen = [await asyncio.gather(anext(first), anext(second)) for _ in range(5)]
    assert seen[-1][0] == seen[-1][1]
    for each in (first, second):
        await each.aclose()
    assert made.num_lookers == 0
    before = len(taken)
    await asyncio.sleep(0.05)
    assert len(taken) == before


async def test_there_is_a_bound_and_the_end_of_the_server_ends_it(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_LOOKERS", 1)
    made, server = feed()
    only = made.events()
    await anext(only)
    with pytest.raises(QueueFullError, match="1 pages watch"):
        made.check_room()
    server.accepting = False
    async with asyncio.timeout(5):
        assert [each async for each in only] == []
    assert made.num_lookers == 0


async def test_a_snapshot_that_fails_ends_nobodys_view(
    taken: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = feed()
    only = made.events()
    await anext(only)
    works = live.snapshot

    def fails(*_: Any) -> Any:
        monkeypatch.setattr(live, "snapshot", works)
        raise RuntimeError("no figures")

    monkeypatch.setattr(live, "snapshot", fails)
    before = len(taken)
    async with asyncio.timeout(5):
        while len(taken) < before + 2:
            await anext(only)
    assert "the live view has no news" in caplog.text
    await only.aclose()
    assert made.num_lookers == 0


def view(*numbers: int) -> LiveView:
    return LiveView(now=9.0, steps=[StepRecord(each, 1.0, 0.1, 0.1, 0.2, 0.3, 8, 3, 3, 1.0, 2.0) for each in numbers])


def test_each_step_is_told_once_and_an_engine_may_begin_again() -> None:
    reader = live.StepReader()

    def told(engine: int, *numbers: int) -> list[int]:
        return [step.number for step in reader.new(engine, view(*numbers)).steps]

    assert told(0, 4, 5, 6) == [4, 5, 6]
    assert told(0, 5, 6, 7) == [7]
    assert told(1, 6, 7) == [6, 7], "steps of another engine"
    assert told(0, 5, 6, 7) == []
    assert told(0, 1, 2) == [1, 2], "its numbers begin again"
    assert told(0, 2, 3) == [3]
