"""Notices API server processes that do nothing: stopped ones, and those whose event loop hangs."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxllm.serving.ipc.client.connection import STOPPED_SECONDS
from jaxllm.serving.ipc.client.health import RECONCILE_SECONDS, TICK_SECONDS, Heartbeat
from jaxllm.serving.server.workers.messages import Ping
from jaxllm.serving.server.workers.worker import Worker


@dataclass(slots=True)
class _Watched:
    """A process that has not been killed. Of one that starts, only `stopped` counts."""

    heartbeat: Heartbeat | None = None
    asked: float = 0.0
    is_asked: bool = False
    stopped: float = 0.0
    """Seconds for which it has been stopped."""


class WorkerWatch:
    """Asks those that listen whether their event loop runs, and kills those that do not answer.

    One question at a time: a process that reads nothing must not hold up who asks. Belongs to an event loop.
    """

    def __init__(self, limit: float, workers: Callable[[], Iterable[Worker]]) -> None:
        """After `limit` seconds without an answer a process counts as hanging."""
        self._limit, self._workers = limit, workers
        self._watched: dict[Worker, _Watched] = {}

    def take_listening(self, worker: Worker) -> None:
        """From now on its event loop answers."""
        self._watched[worker] = _Watched(Heartbeat(self._limit))

    def take_pong(self, worker: Worker) -> None:
        """It has answered."""
        watched = self._watched.get(worker)
        if watched is not None and watched.heartbeat is not None:
            watched.heartbeat.heard(owed=False)
            watched.is_asked = False

    async def run(self) -> None:
        """Look at all, again and again."""
        now = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            before, now = now, time.monotonic()
            there = list(self._workers())
            self._watched = {worker: self._watched.get(worker, _Watched()) for worker in there}
            for worker, watched in self._watched.items():
                if not worker.is_killed:
                    self._look(worker, watched, before, now)

    def _look(self, worker: Worker, watched: _Watched, before: float, now: float) -> None:
        heartbeat = watched.heartbeat
        if heartbeat is None:
            # Starts take as long as they take, but one that does nothing never ends.
            watched.stopped = watched.stopped + now - before if worker.is_stopped else 0.0
            if watched.stopped > STOPPED_SECONDS:
                worker.kill(f"somebody stopped it (SIGSTOP) {watched.stopped:.0f} s ago as it started")
            return
        heartbeat.tick(now - before)
        if heartbeat.hangs:
            worker.kill(f"it hangs: its event loop has not responded for {heartbeat.silence:.0f} s")
        elif not watched.is_asked and now - watched.asked >= min(RECONCILE_SECONDS, self._limit / 2):
            watched.asked, watched.is_asked = now, True
            heartbeat.expect()
            worker.tell(Ping())
