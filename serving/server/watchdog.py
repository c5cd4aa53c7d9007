"""Watches the memory of the server's processes and the lag of its event loop, once the server answers."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Literal

import psutil

from jaxllm.serving.http.state import ServerState

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the memory of all processes."""
LAG_SECONDS = 0.25
"""Between two looks at the event loop."""
SHED_SHARE = 0.9
"""Share of the memory that a process may have from which on nothing new is taken."""
_STRIKES = 2
"""Looks in a row at too much memory before an engine is restarted: some of it is given back at once."""
_GIB = 2**30

Verdict = Literal["fine", "shed", "restart"]


class MemoryGuard:
    """Judges the memory of processes: first nothing new is taken, then an engine is restarted."""

    def __init__(self, limit: float) -> None:
        """Each process may have `limit` GiB; 0: as much as it likes."""
        self._limit = limit * _GIB
        self._first: dict[str, tuple[int, int]] = {}
        self._strikes: dict[str, int] = {}

    def judge(self, name: str, pid: int, size: int) -> Verdict:
        """What is to be done about the process `pid`, called `name`, of `size` bytes."""
        if not self._limit:
            return "fine"
        known, first = self._first.get(name, (0, 0))
        if known != pid:
            known, first = self._first[name] = (pid, size)
            self._strikes.pop(name, None)
            if size >= self._limit:
                _log.error("%s: restarting it would not help, as it begins with so much", self.describe(name, size))
        if size < self._limit or first >= self._limit:
            self._strikes.pop(name, None)
            return "fine" if size < SHED_SHARE * self._limit else "shed"
        self._strikes[name] = self._strikes.get(name, 0) + 1
        return "restart" if self._strikes[name] >= _STRIKES else "shed"

    def describe(self, name: str, size: int) -> str:
        """For people."""
        most = self._limit / _GIB
        return f"{name} has {size / _GIB:.2f} GiB of memory, and may have {most:g} (--max-process-memory)"


class EngineMemory:
    """Looks at the memory of engines that this process has started."""

    def __init__(self, limit: float, report: Callable[[int, int], None]) -> None:
        """Each may have `limit` GiB. `report` is called with the number of an engine and its bytes."""
        self._guard = MemoryGuard(limit)
        self._report = report

    def look(self, engines: Iterable[tuple[int, int | None, Callable[[str], None]]]) -> str:
        """Look at all: number, process, and what restarts it. Why nothing new is to be taken; empty if it may be."""
        problem = ""
        for number, pid, restart in engines:
            size = child_memory(pid)
            if pid is None or size is None:
                continue
            self._report(number, size)
            name = f"engine {number}"
            verdict = self._guard.judge(name, pid, size)
            if verdict != "fine":
                problem = problem or self._guard.describe(name, size)
            if verdict == "restart":
                restart(self._guard.describe(name, size))
        return problem


def child_memory(pid: int | None) -> int | None:
    """Bytes of a child of this process; None for any other, such as one of another machine."""
    try:
        process = None if pid is None else psutil.Process(pid)
        if process is None or process.ppid() != os.getpid():
            return None
        found: int = process.memory_info().rss
    except psutil.Error:
        return None
    return found


async def watch_memory(state: ServerState, told: Callable[[], str] | None) -> None:
    """Watch this process, and its engines; `told`: as one of several, what the supervisor says of the engines."""
    limit = state.options.max_process_memory
    own, engines = MemoryGuard(limit), EngineMemory(limit, state.metrics.set_engine_memory)
    myself = psutil.Process()
    while True:
        size = state.metrics.http.memory = myself.memory_info().rss
        problem = ""
        if own.judge("an API server", myself.pid, size) != "fine":
            # Restarting it would break its connections.
            problem = own.describe("an API server", size)
        if told is not None:
            problem = problem or told()
        else:
            there = state.llm.engines.engines
            found = engines.look([(each.number, each.living_pid, each.restart) for each in there])
            problem = problem or found
        if bool(problem) != bool(state.overloaded):
            _log.warning("%s", f"taking no new requests: {problem}" if problem else "taking new requests again")
        state.overloaded = problem
        await asyncio.sleep(LOOK_SECONDS)


async def watch_lag(observe: Callable[[float], None]) -> None:
    """Tell `observe` again and again by how many seconds this event loop is late."""
    while True:
        asked = time.monotonic()
        await asyncio.sleep(LAG_SECONDS)
        observe(max(0.0, time.monotonic() - asked - LAG_SECONDS))
