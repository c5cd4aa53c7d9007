"""Changes the number of engines of several API server processes. Each has requests of its own."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from jaxllm.errors import CapacityError, ConfigError, RequestError
from jaxllm.serving.ipc.client.scaling import PARAMETER, check_size
from jaxllm.serving.server.workers.messages import FromWorker, Resize, Resized, Scale, Scaled, ScalingTo
from jaxllm.serving.server.workers.shared_engines import SharedEngines
from jaxllm.serving.server.workers.worker import Worker

# What processes get beyond the time to drain.
_MORE_SECONDS = 60.0


class WorkerScaling:
    """Has all processes and the supervisor's engines change together. Belongs to an event loop."""

    def __init__(self, engines: SharedEngines, workers: Callable[[], Iterable[Worker]]) -> None:
        self._engines, self._workers = engines, workers
        self._busy = False
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[Worker, asyncio.Future[Resized]] = {}

    def take(self, worker: Worker, message: FromWorker) -> None:
        """A process's message: it was asked to scale, or has done its part."""
        match message:
            case Scale(size, seconds):
                self._task = asyncio.create_task(self._answer(worker, size, seconds))
            case Resized() if worker in self._waiting:
                self._waiting.pop(worker).set_result(message)

    def forget(self, worker: Worker) -> None:
        """This process has ended, and all that it had to do."""
        waiting = self._waiting.pop(worker, None)
        if waiting is not None:
            waiting.set_result(Resized())

    async def close(self) -> None:
        """End a change that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _answer(self, worker: Worker, size: int, seconds: float) -> None:
        if self._busy:
            worker.tell(Scaled("ScalingBusyError", "scaling is in progress: try again later"))
            return
        self._busy = True
        try:
            self._tell(ScalingTo(size))
            await self._change(size, seconds)
        except Exception as error:  # noqa: BLE001  (whatever it is, who asked is told)
            kind = "RequestError" if isinstance(error, ConfigError) else type(error).__name__
            worker.tell(Scaled(kind, str(error)))
        else:
            worker.tell(Scaled())
        finally:
            self._busy = False
            self._tell(ScalingTo(None))

    async def _change(self, size: int, seconds: float) -> None:
        check_size(size)
        before = self._engines.size
        if size > before:
            try:
                await self._engines.grow(size)
            except (ConfigError, CapacityError) as error:
                raise RequestError(str(error), PARAMETER) from error
            try:
                await self._ask("grow", size, _MORE_SECONDS)
            except Exception:
                await self._remove(before)
                raise
        elif size < before:
            if all(number in self._engines.lost for number in range(size)):
                raise RequestError(f"{PARAMETER}={size}: the remaining engines have failed permanently")
            try:
                await self._ask("drain", size, seconds)
            except Exception:
                await self._ask("grow", before, _MORE_SECONDS)
                raise
            await self._remove(size)

    async def _remove(self, size: int) -> None:
        try:
            await self._ask("remove", size, _MORE_SECONDS)
        finally:
            await self._engines.shrink(size)

    async def _ask(self, step: Literal["grow", "drain", "remove"], size: int, seconds: float) -> None:
        """Have all processes do this; the first error of one is raised when all have answered."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting = {worker: loop.create_future() for worker in self._workers()}
        answers = list(waiting.values())
        self._tell(Resize(step, size, seconds))
        async with asyncio.timeout(seconds + _MORE_SECONDS):
            for answer in await asyncio.gather(*answers):
                answer.check()

    def _tell(self, message: Resize | ScalingTo) -> None:
        for worker in self._workers():
            worker.tell(message)
