"""The engines of a group: started together, and added or removed while they serve."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError, ScalingTimeoutError
from jaxllm.serving.ipc.client.asynchronous import AsyncEngine
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.placement import as_first
from jaxllm.serving.ipc.client.resumption import MAX_REQUEST_CRASHES
from jaxllm.serving.ipc.client.router import Routing
from jaxllm.serving.ipc.client.shared_state import SharedState
from jaxllm.serving.ipc.client.supervisor import STALE_WEIGHTS, RestartBudget
from jaxllm.serving.text.engine import OutputSink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """As those of `AsyncLLM.start`. `launch_of` tells how the process of an engine is started, by its number."""

    size: int
    routing: Routing
    max_queued_requests: int | None
    max_in_flight: int | None = None
    max_queued_tokens: int | None = None
    step_timeout: float
    launch_of: Callable[[int], Launch]
    max_restarts: int | None
    restart_window: float
    max_request_crashes: int = MAX_REQUEST_CRASHES
    settings: dict[str, Any] = field(default_factory=dict)
    """More for `AsyncEngine.start`: how to log."""
    scale: Callable[[int, float], Awaitable[None]] | None = None
    """Has another process change the number of engines, where that one starts them."""
    local_engines: int | None = None
    """The engines with lower numbers run on this machine; None: all do."""
    is_guest: bool = False
    """Whether another process starts the engines: then those that are gone when this one begins are done without."""


class Members:
    """The engines by number. Those from `size` on get nothing new, and are about to leave. Belongs to an event loop."""

    def __init__(self, options: GroupOptions, state: SharedState) -> None:
        """Nothing is started yet."""
        self.loss: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        """Done when all engines are gone for good, with the reason of the last."""
        self.info: EngineInfo
        """The model and its limits, as the engine said that was heard last when it started."""
        self._options, self._state = options, state
        self._config: EngineConfig
        self._make_follower: Callable[[], OutputSink[Any]]
        self.all = [self._make(number) for number in range(options.size)]
        """All engines, also those that are about to leave."""
        self.size = options.size
        """How many of them take requests."""

    def _make(self, number: int) -> AsyncEngine:
        options = self._options
        engine = AsyncEngine(
            number,
            self._state,
            step_timeout=options.step_timeout,
            launch=options.launch_of(number),
            restarts=RestartBudget(options.max_restarts, options.restart_window),
        )
        engine.health.loss.add_done_callback(partial(self._take_loss, number))
        return engine

    async def start(self, config: EngineConfig, progress: Progress) -> None:
        """Start all processes. Raises `ConfigError`, `CapacityError` and `EngineError`.

        The first one compiles. The others come after it, because they find everything on disk then.
        """
        self._config = config
        if self._options.is_guest:
            await self._join(progress)
            return
        first, *others = self.all
        self.info = await first.start(config, progress=progress, **self._options.settings)
        # Also of those that are added later.
        self._config = as_first(config, self.info)
        if others:
            stage = "Starting engines"
            progress(stage, 1, len(self.all))
            starting = [asyncio.ensure_future(self._start(each)) for each in others]
            try:
                for done, each in enumerate(asyncio.as_completed(starting), 2):
                    await each
                    progress(stage, done, len(self.all))
            finally:
                for each in starting:
                    each.cancel()

    async def _start(self, engine: AsyncEngine) -> None:
        await engine.start(self._config, progress=silent, **self._options.settings)

    async def _join(self, progress: Progress) -> None:
        """Find the engines that there are. Raises `EngineError` when there is none."""
        starting = (engine.start(self._config, progress=progress, **self._options.settings) for engine in self.all)
        found = await asyncio.gather(*starting, return_exceptions=True)
        for engine, result in zip(self.all, found, strict=True):
            if isinstance(result, EngineInfo):
                self.info = result
            elif isinstance(result, EngineError) and len(self.there) > 1:
                engine.take_loss(result)
            else:
                raise result

    def serve(self, make_follower: Callable[[], OutputSink[Any]]) -> None:
        """From now on requests are taken; of each engine another follower makes results of what it says."""
        self._make_follower = make_follower
        for engine in self.all:
            engine.serve(make_follower())

    @property
    def open(self) -> list[AsyncEngine]:
        """Engines that are to stay."""
        return self.all[: self.size]

    @property
    def there(self) -> list[AsyncEngine]:
        """The engines that have not failed permanently."""
        return [engine for engine in self.open if engine.health.error is None]

    # While they serve

    async def grow(self, size: int) -> None:
        """Start more engines, up to `size`; they take requests when all are ready. Raises errors as `start` does."""
        new: list[AsyncEngine] = []
        try:
            if any(engine.has_other_weights for engine in self.all):
                self._options.settings["stale_weights"] = STALE_WEIGHTS
            new.extend(map(self._make, range(len(self.all), size)))
            await asyncio.gather(*map(self._start, new))
        except BaseException:
            await asyncio.gather(*(each.shutdown() for each in new))
            raise
        for engine in new:
            engine.serve(self._make_follower())
        self.all += new
        self.resize(size)

    async def drain(self, size: int, seconds: float) -> None:
        """Send nothing new to the engines from `size` on, and wait until they have nothing to do.

        Raises `ScalingTimeoutError` when that takes longer; then they take requests again.
        """
        before, self.size = self.size, size
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(engine.idle.wait() for engine in self.all[size:]))
        except TimeoutError:
            left = sum(map(len, self.all[size:]))
            self.size = before
            raise ScalingTimeoutError(
                f"{left} requests of the engines to be stopped are still running after drain_timeout={seconds:g} s; "
                f"all {before} engines continue; try again with a longer timeout"
            ) from None
        except BaseException:
            self.size = before
            raise

    async def remove_drained(self) -> None:
        """End the engines that get nothing new."""
        gone = self.all[self.size :]
        del self.all[self.size :]
        await asyncio.gather(*(engine.shutdown() for engine in gone))
        for engine in gone:
            for observer in self._state.observers:
                observer.observe(StepStats(), None, engine.number)
        self.resize(self.size)

    def resize(self, size: int) -> None:
        """There are so many engines now: tell everybody."""
        self.size = size
        for tell in self._state.on_resize:
            tell(size)

    def _take_loss(self, number: int, loss: "asyncio.Future[EngineError]") -> None:
        if loss.cancelled() or self.loss.done() or number >= len(self.all):
            return
        if all(engine.health.loss.done() for engine in self.all):
            self.loss.set_result(loss.result())
        else:
            logger.error("engine %d has failed permanently, the others continue: %s", number, loss.result())
