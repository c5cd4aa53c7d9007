"""A reader of real publishers: late, behind, and through restarts."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.config.kv_events import KVEventsSettings
from jaxllm.engine.events.publisher import Publisher
from jaxllm.engine.events.wire import CacheGroup
from jaxllm.kv.events import KVEvents
from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.affinity import subscription as reading
from jaxllm.serving.affinity.cached_blocks import CachedBlocks
from jaxllm.serving.affinity.subscription import Subscription, UnusableSourceError, reachable

SECONDS = 30


class Engine:
    """A cache of 7 pages of 2 tokens whose events are published."""

    def __init__(self, folder: Path, *, replay: bool = True, **settings: Any) -> None:
        self.manager = KVManager(8, 2)
        events = KVEvents(2)
        self.manager.record(events)
        again = f"ipc://{folder}/replay" if replay else None
        options = KVEventsSettings(endpoint=f"ipc://{folder}/events", replay_endpoint=again, **settings)
        self.publisher = Publisher(options, 0, events, 2, [CacheGroup("full_attention")])

    def compute(self, tokens: list[int]) -> None:
        prompt = np.array(tokens, np.int32)
        request = Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams())
        found = self.manager.admit(request, 0)
        assert found is not None
        self.manager.publish(request, prompt, *found, len(tokens))
        self.manager.release(found[0])
        self.publisher.flush()


@asynccontextmanager
async def reader(engine: Engine) -> AsyncIterator[tuple[CachedBlocks, Subscription]]:
    cached = CachedBlocks()
    subscription = Subscription(engine.publisher.source, "127.0.0.1", cached)
    task = asyncio.create_task(subscription.run())
    try:
        yield cached, subscription
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  (what changes it has no event)
            await asyncio.sleep(0.005)


def matched(cached: CachedBlocks, tokens: list[int]) -> int:
    return cached.matched(np.array(tokens, np.int32))


async def test_what_was_before_comes_by_replay_and_what_follows_live(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    try:
        engine.compute([1, 2, 3, 4])
        async with reader(engine) as (cached, _):
            await until(lambda: cached.is_live)
            assert matched(cached, [1, 2, 3, 4, 5]) == 4
            engine.compute([1, 2, 3, 4, 6, 7])
            await until(lambda: matched(cached, [1, 2, 3, 4, 6, 7]) == 6)
            engine.compute([9] * 14)  # takes every page
            await until(lambda: matched(cached, [9] * 14) == 14)
            assert matched(cached, [1, 2, 3, 4, 5]) == 0
        assert not cached.is_live
        assert len(cached) == 0
    finally:
        engine.publisher.close()


async def test_a_restart_clears_what_was_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_SECONDS", 0.01)
    engine = Engine(tmp_path)
    async with reader(engine) as (cached, _):
        await until(lambda: cached.is_live)
        engine.compute([1, 2, 3, 4])
        await until(lambda: matched(cached, [1, 2, 3, 4]) == 4)
        engine.publisher.close()
        await until(lambda: not cached.is_live)
        assert matched(cached, [1, 2, 3, 4]) == 0
        engine = Engine(tmp_path)
        try:
            engine.compute([5, 6])
            await until(lambda: cached.is_live and matched(cached, [5, 6]) == 2)
            assert matched(cached, [1, 2, 3, 4]) == 0
        finally:
            engine.publisher.close()


@pytest.mark.parametrize(("kept", "left"), [(100, 2), (1, 0)])
async def test_a_gap_is_replayed_or_everything_is_forgotten(tmp_path: Path, kept: int, left: int) -> None:
    engine = Engine(tmp_path, buffer_steps=kept)
    try:
        async with reader(engine) as (cached, subscription):
            await until(lambda: cached.is_live)
            engine.compute([7, 8])
            engine.compute([1, 2])
            await until(lambda: matched(cached, [1, 2]) == 2)
            subscription._last -= 1  # as if the last batch had not arrived
            engine.compute([3, 4])
            engine.compute([5, 6])
            await until(lambda: matched(cached, [5, 6]) == 2)
            assert subscription.num_gaps == 1
            assert matched(cached, [1, 2]) == left
    finally:
        engine.publisher.close()


async def test_without_replay_live_events_are_enough(tmp_path: Path) -> None:
    engine = Engine(tmp_path, replay=False)
    try:
        async with reader(engine) as (cached, _):
            await until(lambda: cached.is_live)
            numbers = itertools.count(10)

            def told() -> bool:
                # The subscription may reach the publisher after the first of these.
                engine.compute([next(numbers)] * 4)
                return len(cached) > 0

            await until(told)
    finally:
        engine.publisher.close()


def test_addresses_as_engines_bind_them() -> None:
    assert reachable("tcp://*:5557", "10.0.0.1") == "tcp://10.0.0.1:5557"
    assert reachable("tcp://[::]:5557", "fd00::1") == "tcp://[fd00::1]:5557"
    assert reachable("tcp://10.0.0.9:5557", None) == "tcp://10.0.0.9:5557"
    for wrong in ("inproc://events", "tcp://*:5557"):
        with pytest.raises(UnusableSourceError):
            reachable(wrong, None)
