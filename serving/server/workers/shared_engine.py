"""One of the supervisor's engines, which serves several API server processes, and its successors."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client.supervisor import EngineSupervisor
from jaxllm.serving.ipc.messages import AttachClient, DetachClient, FromEngine, Outputs
from jaxllm.serving.server.workers.messages import EngineEnded
from jaxllm.serving.server.workers.worker import Worker

_log = logging.getLogger(__name__)


class SharedEngine:
    """An engine that is told whom to serve. Belongs to an event loop.

    A process waits for the engine with sockets in a folder, is attached, and when the engine has ended, waits with
    other sockets for the next one.
    """

    def __init__(
        self,
        supervise: Callable[["SharedEngine"], EngineSupervisor],
        observe: Callable[[StepStats], None],
        on_restart: Callable[[EngineInfo], None],
        on_loss: Callable[[EngineError], None],
    ) -> None:
        """`supervise` makes what starts the processes. `observe` is called with the state after a step, `on_restart`
        when there is another engine, `on_loss` when there will be none any more.
        """
        self._observe, self._on_restart, self._on_loss = observe, on_restart, on_loss
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervise(self)
        self._ready = False
        self._loss: EngineError | None = None
        self._folders: dict[Worker, str] = {}
        self._attached: set[Worker] = set()

    async def start(self, config: EngineConfig, **settings: Any) -> EngineInfo:
        """Load the model, and serve whoever waits for it. Settings and errors are those of `EngineSupervisor.start`."""
        info = await self._supervisor.start(config, **settings)
        self._serve_all()
        return info

    def attach(self, worker: Worker, folder: str) -> None:
        """Serve this process, whose sockets lie in the folder, once there is an engine, or say that none comes."""
        self.detach(worker)
        if self._loss is not None:
            worker.tell(EngineEnded(folder, str(self._loss)))
            return
        self._folders[worker] = folder
        if self._ready:
            self._attach(worker)

    def detach(self, worker: Worker) -> None:
        """Serve this process no longer: the engine ends its requests."""
        folder = self._folders.pop(worker, None)
        if worker in self._attached and folder is not None:
            self._attached.remove(worker)
            connection = self._supervisor.connection
            connection.send(DetachClient(connection.reach(folder)))

    def end_hanging(self, worker: Worker, folder: str, reason: str) -> None:
        """A process says that its engine hangs, which may be another one by now."""
        if worker in self._attached and self._folders[worker] == folder:
            self._end(EngineError(reason), kill=True)

    @property
    def living_pid(self) -> int | None:
        """Process id of the engine; None while there is none."""
        return self._supervisor.connection.pid if self._ready else None

    def restart(self, reason: str) -> None:
        """Kill the process, if there is one; the next one goes on with its requests."""
        if self._ready:
            self._end(EngineError(reason), kill=True)

    @property
    def has_other_weights(self) -> bool:
        """See `EngineSupervisor.has_other_weights`."""
        return self._supervisor.has_other_weights

    def mark_weights_stale(self) -> None:
        """See `EngineSupervisor.mark_weights_stale`."""
        self._supervisor.mark_weights_stale()

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
        connection = self._supervisor.connection
        connection.send(AttachClient(connection.reach(self._folders[worker])))

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
        self._on_restart(info)
        self._serve_all()

    def take_loss(self, error: EngineError) -> None:
        """There will be no other engine: those that wait for one with their sockets are told."""
        self._loss = error
        for worker, folder in self._folders.items():
            worker.tell(EngineEnded(folder, str(error)))
        self._folders.clear()
        self._on_loss(error)

    def _take_end(self, generation: int, error: EngineError) -> None:
        if generation == self._supervisor.generation:
            self._end(error)

    def _take_stats(self, generation: int, stats: StepStats) -> None:
        if generation == self._supervisor.generation:
            self._observe(stats)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """From a thread: call on the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)
