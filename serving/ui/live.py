"""The live view's stream: what the server does, twice a second, taken once for all who look, and for nobody else."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import reduce
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.page_map import PageMap
from jaxllm.engine.stats import merge_stats
from jaxllm.engine.step_log import StepRecord
from jaxllm.engine.views import LiveView
from jaxllm.errors import EngineError, QueueFullError
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.stream import Events
from jaxllm.serving.ipc.client.control import called
from jaxllm.serving.telemetry.engine_metrics import EngineMetrics
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.progress import SequenceProgress

logger = logging.getLogger(__name__)

INTERVAL = 0.5
"""Seconds between two events."""
ANSWER_SECONDS = 0.5
"""Longest wait for an engine, which answers between two steps."""
MOST_LOOKERS = 64
MOST_ROWS = 64
"""Sequences that an event describes; the counts are of all."""
MOST_MAPS = 8
"""Engines that are asked, and maps of pages in an event, one for each engine or data shard."""

_HISTOGRAMS = {"first_token": "time_to_first_token_seconds", "between_tokens": "inter_token_latency_seconds"}
_COUNTERS = (
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


class EngineSteps(msgspec.Struct):
    """Steps of an engine."""

    engine: int
    now: float
    """Seconds by the clock of the steps, when they were taken."""
    steps: list[StepRecord]
    """Those that were not there at the last event."""


class Snapshot(msgspec.Struct):
    """The server at one moment. Counters and histograms are totals: whoever looks takes differences."""

    time: float
    """Seconds, by a clock that never goes back."""
    running: int
    waiting: int
    capacity: int
    """Sequences that may run at once."""
    kv_usage: float
    """Share of the KV cache's pages that running requests hold, 0 to 1."""
    halted: str
    """Why nothing is computed; empty where that is not so."""
    counters: dict[str, int]
    steps: int
    step_seconds: float
    step_tokens: float
    """Tokens of all steps."""
    histograms: dict[str, list[int]]
    rows: list[SequenceProgress]
    maps: list[PageMap]
    """The pages of the engines' caches, of those that told them in time."""
    timeline: list[EngineSteps]
    """Of those engines, the steps since the last event."""


class Opening(msgspec.Struct):
    """The first event of a looker: the bounds of the histograms, in seconds."""

    interval: float
    bounds: dict[str, list[float]]


def all_metrics(server: ServerState) -> Metrics:
    """The metrics of this server, those of other processes before the same engines included."""
    shared = server.shared_metrics
    server.metrics.set_without_engine(server.llm.engines.num_without_engine())
    if shared is None:
        return server.metrics
    return server.metrics.with_others([each.measured for each in shared.others()], shared.engines())


async def live_views(server: ServerState) -> dict[int, LiveView]:
    """What engines show, by their numbers; nothing of those that do not answer soon."""

    async def ask(number: int, engine: Any) -> tuple[int, LiveView] | None:
        try:
            answer = await asyncio.wait_for(engine.ask(called("live_view")), ANSWER_SECONDS)
        except (TimeoutError, EngineError):
            return None
        return number, msgspec.json.decode(answer, type=LiveView)

    engines = [(number, each) for number, each in enumerate(server.llm.engines.engines) if each.health.is_up]
    answers = await asyncio.gather(*(ask(*each) for each in engines[:MOST_MAPS]))
    return dict(answer for answer in answers if answer is not None)


class StepReader:
    """Knows which steps of each engine were told already."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # the number of the last one

    def new(self, engine: int, view: LiveView) -> EngineSteps:
        """The steps that were not."""
        told = self._told.get(engine, 0)
        last = view.steps[-1].number if view.steps else 0
        if last < told:
            told = 0  # It was started again.
        self._told[engine] = last or told
        return EngineSteps(engine, view.now, [each for each in view.steps if each.number > told])


def snapshot(
    server: ServerState, views: Mapping[int, LiveView] | None = None, reader: StepReader | None = None
) -> Snapshot:
    """The server now, with what `live_views` found before."""
    views, reader = views or {}, reader or StepReader()
    engines = [each for each in all_metrics(server).engines if each.is_there]
    stats = merge_stats([each.stats for each in engines])
    steps = [each.histograms["step_seconds"] for each in engines]
    rows = (row for engine in server.llm.engines.engines for row in engine.in_flight())
    return Snapshot(
        time=time.monotonic(),
        running=stats.num_running,
        waiting=sum(sum(each.waiting().values()) for each in engines),
        capacity=server.llm.info.max_running * len(engines),
        kv_usage=stats.kv_usage,
        halted=stats.halted,
        counters={name: sum(each.counters[name] for each in engines) for name in _COUNTERS},
        steps=sum(sum(each.state()[0]) for each in steps),
        step_seconds=sum(each.sum for each in steps),
        step_tokens=sum(each.histograms["iteration_tokens_total"].sum for each in engines),
        histograms={short: _counts(engines, name) for short, name in _HISTOGRAMS.items()},
        rows=list(islice(rows, MOST_ROWS)),
        maps=[each for view in views.values() for each in view.maps][:MOST_MAPS],
        timeline=[reader.new(number, view) for number, view in views.items() if view.steps],
    )


def _counts(engines: Sequence[EngineMetrics], name: str) -> list[int]:
    counts = (each.histograms[name].state()[0] for each in engines)
    return reduce(lambda joint, more: [a + b for a, b in zip(joint, more, strict=True)], counts)


class LiveFeed:
    """Snapshots for all who look. With nobody looking there is no task, and nothing is taken.

    Who reads slowly misses events: there is only ever the newest. Belongs to an event loop.
    """

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self.num_lookers = 0
        self._task: asyncio.Task[None] | None = None
        self._reader = StepReader()
        self._newest = b""
        self._taken = asyncio.Event()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Events until the server shuts down. Raises `QueueFullError` where too many look already."""
        self._enter()
        try:
            yield _event(self._opening())
            while self._server.accepting:
                if self._newest:
                    yield self._newest
                await self._taken.wait()
        finally:
            self._leave()

    def check_room(self) -> None:
        """Raise `QueueFullError` where too many look already."""
        if self.num_lookers >= MOST_LOOKERS:
            raise QueueFullError(f"{MOST_LOOKERS} pages watch this server already; try again later")

    def _enter(self) -> None:
        self.check_room()
        if self._task is None:
            self._newest = _event(snapshot(self._server))
            self._task = asyncio.create_task(self._take())
        self.num_lookers += 1

    def _leave(self) -> None:
        self.num_lookers -= 1
        if not self.num_lookers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _take(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            if self._server.accepting:
                try:
                    self._newest = _event(snapshot(self._server, await live_views(self._server), self._reader))
                except Exception:
                    # Those who look see the one before once more, and not a view that stands still for good.
                    logger.exception("the live view has no news")
            taken, self._taken = self._taken, asyncio.Event()
            taken.set()

    def _opening(self) -> Opening:
        histograms = self._server.metrics.engines[0].histograms
        return Opening(INTERVAL, {short: list(histograms[name].bounds) for short, name in _HISTOGRAMS.items()})


def _event(body: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class _LiveEvents(Events):
    """The response that a looker reads."""

    def __init__(self, feed: LiveFeed, request_id: str) -> None:
        super().__init__(request_id)
        self._feed = feed

    def _events(self) -> AsyncGenerator[bytes, None]:
        return self._feed.events()


async def show_events(request: Request) -> Response:
    """Send what the server does as events, for as long as the client looks."""
    server_of(request).check_accepting()
    feed: LiveFeed = request.app.state.live
    feed.check_room()
    return _LiveEvents(feed, str(request.scope.get("request_id", "")))
