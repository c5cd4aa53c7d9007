"""The supervisor's engine, which serves several API server processes, and those of its successors."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError
from jaxllm.info import EngineInfo
from jaxllm.progress import Progress
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.supervisor import EngineSupervisor, RestartBudget
from jaxllm.serving.ipc.messages import AttachClient, DetachClient, FromEngine, Outputs
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.workers.messages import EngineEnded
from jaxllm.serving.server.workers.worker import Worker
from jaxllm.serving.telemetry.logs import ThroughputLog
from jaxllm.serving.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)


class SharedEngine:
    """An engine that is told whom to serve. Belongs to an event loop.

    A process waits for the engine with sockets in a folder, is attached, and when the engine has ended, waits with
    other sockets for the next one.
    """

    def __init__(self, options: ServerOptions, launch: Launch, on_loss: Callable[[EngineError], None]) -> None:
        """`on_loss` is called when there will be no engine any more."""
        self.throughput = ThroughputLog()
        self.metrics: Metrics
        self._options, self._on_loss = options, on_loss
        self._loop = asyncio.get_running_loop()
        budget = RestartBudget(options.max_restarts, options.restart_window)
        self._supervisor = EngineSupervisor(self, launch, budget)
        self._ready = False
        self._folders: dict[Worker, str] = {}
        self._attached: set[Worker] = set()

    async def start(self, config: EngineConfig, progress: Progress) -> None:
        """Load the model, and serve whoever waits for it. Raises errors as `AsyncLLM.start` does."""
        options = self._options
        settings: dict[str, Any] = {"log_level": options.log_level, "json_logs": options.log_format == "json"}
        info = await self._supervisor.start(config, progress=progress, **settings)
        self.metrics = Metrics(info, (options.served_model_name or (info.model,))[0], options.metrics_prefix)
        self._serve_all()

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""
        return self._supervisor.connection.info

    def attach(self, worker: Worker, folder: str) -> None:
        """Serve this process, whose sockets lie in the folder, as soon as there is an engine."""
        self.detach(worker)
        self._folders[worker] = folder
        if self._ready:
            self._attach(worker)

    def detach(self, worker: Worker) -> None:
        """Serve this process no longer: the engine ends its requests."""
        folder = self._folders.pop(worker, None)
        if worker in self._attached and folder is not None:
            self._attached.remove(worker)
            self._supervisor.connection.send(DetachClient(folder))

    def end_hanging(self, worker: Worker, folder: str, reason: str) -> None:
        """A process says that its engine hangs, which may be another one by now."""
        if worker in self._attached and self._folders[worker] == folder:
            self._end(EngineError(reason), kill=True)

    def retire(self) -> None:
        """From now on an engine that ends is not replaced."""
        self._supervisor.retire()

    async def close(self) -> None:
        """End the engine."""
        await self._supervisor.close()

    def _serve_all(self) -> None:
        self._ready = True
        for worker in self._folders:
            self._attach(worker)

    def _attach(self, worker: Worker) -> None:
        self._attached.add(worker)
        self._supervisor.connection.send(AttachClient(self._folders[worker]))

    def _end(self, error: EngineError, *, kill: bool = False) -> None:
        """The engine is gone: tell those it served, who wait for the next one with other sockets."""
        self._ready = False
        reason = str(error).removeprefix("the engine process died: ")
        for worker in self._attached:
            worker.tell(EngineEnded(self._folders.pop(worker), reason))
        self._attached.clear()
        # Nothing runs, and nothing waits in the engine.
        self._observe(StepStats())
        self._supervisor.replace(error, kill=kill)

    def hear(self, generation: int, message: FromEngine) -> None:
        """In the listening thread. Whatever is of requests goes to the processes; here comes the state after a step."""
        if isinstance(message, Outputs) and message.stats is not None:
            self._call(self._take_stats, generation, message.stats)

    def hear_end(self, generation: int, error: EngineError) -> None:
        """In the listening thread."""
        self._call(self._take_end, generation, error)

    def take_restart(self, info: EngineInfo) -> None:
        """Another engine is ready."""
        self.metrics.count_engine_restart(info)
        self._serve_all()

    def take_loss(self, error: EngineError) -> None:
        """There will be no other engine."""
        self._on_loss(error)

    def _take_end(self, generation: int, error: EngineError) -> None:
        if generation == self._supervisor.generation:
            self._end(error)

    def _take_stats(self, generation: int, stats: StepStats) -> None:
        if generation == self._supervisor.generation:
            self._observe(stats)

    def _observe(self, stats: StepStats) -> None:
        self.metrics.observe(stats, None)
        self.throughput.observe(stats, None)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """From a thread: call on the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)
