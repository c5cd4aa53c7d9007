"""Signals as events, and waiting for one of them or for work."""

import asyncio
import signal
from contextlib import suppress
from typing import Any, Self

import psutil


class Signals:
    """SIGTERM and SIGINT as events: the first asks to end well, the second to end now. A context manager.

    SIGHUP and `drain` ask to end well, too, however often they come. A process that was started to ignore SIGHUP
    (nohup) does so.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.told = asyncio.Event()
        """Set when SIGTERM or SIGINT came: of several reasons to end well the one that waits for least."""
        self.is_leaving = False
        """Whether another server has taken over: connections of now are answered, and new ones are its."""
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._take, number)
        self._numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGHUP, self.drain)
            self._numbers.append(signal.SIGHUP)
        # From the supervisor of several processes.
        self._loop.add_signal_handler(signal.SIGUSR1, self.leave)
        self._numbers.append(signal.SIGUSR1)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            self._loop.remove_signal_handler(number)

    def drain(self) -> None:
        """Ask to end well."""
        self.first.set()

    def leave(self) -> None:
        """Ask to end well, as another server has taken over."""
        if not self.first.is_set():
            self.is_leaving = True
            self.first.set()

    def _take(self, number: int) -> None:
        if not self.told.is_set():
            self.told.set()
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
