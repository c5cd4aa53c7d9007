"""What `scripts/chaos` does to the processes of a server, and what it sees of them."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
import psutil

from benchmarks.shared.memory_growth import slope

Victim = Literal["engine", "api-server"]
_MODULES = {"engine": "jaxllm.serving.ipc.engine_process", "api-server": "jaxllm.serving.server.workers"}
"""By which a command line is known."""


class Attacker:
    """Sends signals to the processes of one kind of a server."""

    def __init__(self, pid: int, victim: Victim, draw: random.Random, stops: float) -> None:
        """`pid` is the server's; `stops` is the share of attacks that stop a process, which the server then kills."""
        self._server, self._victim = psutil.Process(pid), victim
        self._draw, self._stops = draw, stops
        self.broken: set[int] = set()
        """Ports of clients whose connections have ended with an API server process."""
        self._hit: set[int] = set()

    def strike(self) -> str | None:
        """Kill or stop one that has not been hit yet; the name of the signal. None if there is none."""
        found = [each for each in self._processes() if each.pid not in self._hit]
        if not found:
            return None
        victim = self._draw.choice(found)
        number = signal.SIGSTOP if self._draw.random() < self._stops else signal.SIGKILL
        with suppress(psutil.Error):
            if self._victim == "api-server":
                # It must not take another connection after it has been asked for those that it has.
                victim.suspend()
                self.broken |= {each.raddr.port for each in victim.net_connections("inet") if each.raddr}
            victim.send_signal(number)
            self._hit.add(victim.pid)
            return number.name
        return None

    def _processes(self) -> list[psutil.Process]:
        found = []
        for child in self._server.children(recursive=True):
            with suppress(psutil.Error):
                if _MODULES[self._victim] in child.cmdline():
                    found.append(child)
        return found


@dataclass(frozen=True)
class Vitals:
    """What a process takes: bytes of memory, open files and sockets, threads."""

    memory: int
    descriptors: int
    threads: int


def vitals(pid: int) -> dict[int, Vitals]:
    """Of the server's process, and its API server processes: all that outlive an engine."""
    found = {}
    server = psutil.Process(pid)
    for each in (server, *server.children(recursive=True)):
        with suppress(psutil.Error):
            if each.pid == pid or _MODULES["api-server"] in each.cmdline():
                found[each.pid] = Vitals(each.memory_info().rss, each.num_fds(), each.num_threads())
    return found


def growth(before: list[dict[int, Vitals]], after: list[dict[int, Vitals]]) -> Iterator[str]:
    """What each process took then and now, on average, for people to read."""
    for pid in before[-1].keys() & after[-1].keys():
        parts = []
        for name, unit in (("memory", 2**20), ("descriptors", 1), ("threads", 1)):
            means = [fmean(getattr(each[pid], name) / unit for each in some if pid in each) for some in (before, after)]
            parts.append(f"{name} {means[0]:.1f} -> {means[1]:.1f}")
        yield f"process {pid}: {', '.join(parts)}"


def slopes(course: list[tuple[float, dict[int, Vitals]]]) -> Iterator[str]:
    """How fast each process that lasted grew, from the first third on, with intervals of 95 %. None of short runs."""
    course = course[len(course) // 3 :]
    for pid in course[0][1].keys() & course[-1][1].keys() if course else ():
        seconds = np.array([second for second, each in course if pid in each])
        parts = []
        for name, unit in (("memory", 2**20), ("descriptors", 1), ("threads", 1)):
            values = np.array([getattr(each[pid], name) / unit for _, each in course if pid in each])
            try:
                found = slope(seconds, values)
            except ValueError:
                return
            parts.append(f"{name} {values.mean():.1f} {found.value:+.2f}/h ({found.low:+.2f} to {found.high:+.2f})")
        yield f"process {pid}, mean and slope: {', '.join(parts)}"


def alive_in(folder: Path) -> list[psutil.Process]:
    """Processes whose temporary files go to this folder."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get("TMPDIR") == str(folder) and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def command_of(process: psutil.Process) -> str:
    """What it runs, for people."""
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{process.pid}: gone by now"


def named_memory(pid: int) -> set[Path]:
    """Files of shared memory that processes of a server have open or mapped, and that have a name."""
    found: set[str] = set()
    for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.Error):
            found |= {mapped.path for mapped in each.memory_maps()} | {file.path for file in each.open_files()}
    return {Path(path) for path in found if path.startswith("/dev/shm/")}


def kill_everything(pid: int, draw: random.Random) -> int:
    """Kill all processes of a server, in any order, or only the first of them; how many were killed."""
    server = psutil.Process(pid)
    victims = [server, *server.children(recursive=True)]
    victims = victims if draw.random() < 0.5 else [server]
    draw.shuffle(victims)
    for each in victims:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    return len(victims)
