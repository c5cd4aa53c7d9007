"""Signals as events, and waiting for one of them or for work."""

import asyncio
import signal
from contextlib import suppress
from typing import Any, Self

import psutil


class Signals:
    """SIGTERM and SIGINT as events: the first asks to end well, the second to end now. A context manager."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _take(self, number: int) -> None:
        if not self.first.is_set():
            self.first.set()
            return
        self.exit_code = 128 + number
        self.second.set()
        # The engine may be in a long step or compilation: it is not asked.
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()


async def before(event: asyncio.Event, work: "asyncio.Future[Any]", seconds: float | None = None) -> bool:
    """Wait until `work` is done or `event` is set, but no longer than `seconds`; whether the work is done."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((work, waiting), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return work.done()


async def cancel(work: "asyncio.Future[Any]") -> None:
    """End `work` if it is not done, and wait for that; its own errors no longer matter."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
