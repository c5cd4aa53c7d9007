"""The supervisor's engines. Each serves all API server processes."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.placement import as_first, of_rank
from jaxllm.serving.ipc.client.supervisor import STALE_WEIGHTS, EngineSupervisor, RestartBudget
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.workers.messages import EngineEnded
from jaxllm.serving.server.workers.shared_engine import SharedEngine
from jaxllm.serving.server.workers.worker import Worker
from jaxllm.serving.telemetry.logs import ThroughputLog
from jaxllm.serving.telemetry.metrics import Metrics


class SharedEngines:
    """Starts them, and counts what they tell. Belongs to an event loop."""

    def __init__(
        self,
        config: EngineConfig,
        options: ServerOptions,
        launch_of: Callable[[int], Launch],
        on_loss: Callable[[EngineError], None],
    ) -> None:
        """`on_loss` is called when there will be no engine any more."""
        self.throughput = ThroughputLog()
        self.metrics: Metrics
        self.info: EngineInfo
        """The model and its limits: those of the first engine."""
        self._config, self._options, self._on_loss = config, options, on_loss
        self._launch_of = launch_of
        self._settings: dict[str, Any] = {"log_level": options.log_level, "json_logs": options.log_format == "json"}
        self.lost: set[int] = set()
        """Engines that are gone for good."""
        self._engines = [self._make(number) for number in range(config.parallel.data_parallel_size)]

    def _make(self, number: int) -> SharedEngine:
        own = self._launch_of(number)
        budget = RestartBudget(self._options.max_restarts, self._options.restart_window)
        return SharedEngine(
            lambda owner: EngineSupervisor(owner, own, budget),
            partial(self._observe, number),
            partial(self._count_restart, number),
            partial(self._take_loss, number),
        )

    async def start(self, progress: Progress) -> None:
        """Load the model, in the first engine before the others. Raises errors as `AsyncLLM.start` does."""
        options, settings = self._options, self._settings
        first, *others = self._engines
        self.info = await first.start(of_rank(self._config, 0), progress=progress, **settings)
        name = (options.served_model_name or (self.info.model,))[0]
        self.metrics = Metrics(
            self.info, name, options.metrics_prefix, len(self._engines), self._config.parallel.first_rank
        )
        # Also of those that are added later.
        self._config = as_first(self._config, self.info)
        await asyncio.gather(*map(self._start, others, range(1, len(self._engines))))

    async def _start(self, engine: SharedEngine, number: int) -> None:
        await engine.start(of_rank(self._config, number), progress=silent, **self._settings)

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._engines)

    async def grow(self, size: int) -> None:
        """Start more, up to `size`. Raises errors as `start` does; then there are as many as before."""
        new: list[SharedEngine] = []
        try:
            if any(each.has_other_weights for each in self._engines):
                self._settings["stale_weights"] = STALE_WEIGHTS
            new.extend(map(self._make, range(len(self._engines), size)))
            await asyncio.gather(*map(self._start, new, range(len(self._engines), size)))
        except BaseException:
            await asyncio.gather(*(each.close() for each in new))
            raise
        self._engines += new
        self.metrics.resize(size)

    async def shrink(self, size: int) -> None:
        """End those from this number on. Nobody wants anything from them any more."""
        gone = self._engines[size:]
        del self._engines[size:]
        await asyncio.gather(*(each.close() for each in gone))
        for number in range(size, size + len(gone)):
            self._observe(number, StepStats())
        self.lost &= set(range(size))
        self.metrics.resize(size)

    def attach(self, worker: Worker, folder: str, engine: int) -> None:
        """Have an engine serve this process, whose sockets lie in the folder, as soon as it is there."""
        if engine < len(self._engines):
            self._engines[engine].attach(worker, folder)
        else:
            worker.tell(EngineEnded(folder, "it was removed"))

    def detach(self, worker: Worker) -> None:
        """Serve this process no longer: the engines end its requests."""
        for engine in self._engines:
            engine.detach(worker)

    def end_hanging(self, worker: Worker, folder: str, reason: str) -> None:
        """A process says that one of its engines hangs, which may be another one by now."""
        for engine in self._engines:
            engine.end_hanging(worker, folder, reason)

    @property
    def all(self) -> list[SharedEngine]:
        """All engines, by number."""
        return self._engines

    def retire(self) -> None:
        """From now on an engine that ends is not replaced."""
        for engine in self._engines:
            engine.retire()

    async def close(self) -> None:
        """End the engines."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    def _observe(self, number: int, stats: StepStats) -> None:
        if stats.weights_version and not all(each.has_other_weights for each in self._engines):
            # Also one that ended before it could be updated is to wait for its weights.
            for each in self._engines:
                each.mark_weights_stale()
        self.metrics.observe(stats, None, number)
        self.throughput.observe(stats, None, number)

    def _count_restart(self, number: int, info: EngineInfo) -> None:
        self.metrics.count_engine_restart(info, number)

    def _take_loss(self, number: int, error: EngineError) -> None:
        self.lost.add(number)
        if len(self.lost) == len(self._engines):
            self._on_loss(error)
