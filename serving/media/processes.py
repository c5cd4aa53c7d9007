"""`ProcessPool`: has jobs done by processes that may die of them."""

import asyncio
import os
import socket
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxllm import child
from jaxllm.errors import QueueFullError
from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError
from jaxllm.serving.media.worker import ANSWER, DONE, TOO_LARGE, receive, receive_into

MOST_PROCESSES: Final = 8
"""Unless an option says more."""
WALL_FACTOR: Final = 3
"""By the clock, so many times the CPU seconds: the machine may be busy."""
MOST_MESSAGE: Final = 4096
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Variables that the process sees: it has no use for keys."""

Scalar = TypeVar("Scalar", bound=np.generic)
Scalar_co = TypeVar("Scalar_co", bound=np.generic, covariant=True)


class Job(Protocol[Scalar_co]):
    """What a process is asked to do with a file, and what array it may answer with."""

    @property
    def seconds(self) -> int:
        """CPU time that it may take."""

    @property
    def subject(self) -> str:
        """What the file is, in errors: "image"."""

    @property
    def parameter(self) -> str:
        """The field that gave it, in errors."""

    def head(self, size: int) -> bytes:
        """What the process is told of a file of so many bytes."""

    def empty(self, first: int, second: int, size: int) -> NDArray[Scalar_co] | None:
        """The array that an answer of `size` bytes fills, by its two numbers; None where that is no possible answer.

        The process may be an attacker's by now: nothing that it says is taken on trust.
        """


class _Process:
    """One process, which does one job at a time."""

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                child.command(module),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self._connection = ours

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def ask(self, job: Job[Scalar], data: bytes) -> NDArray[Scalar] | Exception:
        """The array, or the error of this file. Raises `OSError` if the process dies of it or takes too long."""
        # It also ends a process that is stopped.
        timer = threading.Timer(WALL_FACTOR * job.seconds, self.kill)
        timer.daemon = True
        timer.start()
        try:
            self._connection.sendall(job.head(len(data)))
            self._connection.sendall(data)
            head = receive(self._connection, ANSWER.size)
            if len(head) < ANSWER.size:
                raise ConnectionResetError("the process has ended")
            kind, first, second, size = ANSWER.unpack(head)
            return self._read(job, kind, first, second, size)
        finally:
            timer.cancel()

    def _read(self, job: Job[Scalar], kind: int, first: int, second: int, size: int) -> NDArray[Scalar] | Exception:
        """What follows the head."""
        if kind == DONE:
            found = job.empty(first, second, size)
            if found is None or found.nbytes != size:
                raise ConnectionResetError("the process tells nonsense")
            if receive_into(self._connection, found.data.cast("B")) < size:
                raise ConnectionResetError("the process has ended")
            return found
        if size > MOST_MESSAGE:
            raise ConnectionResetError("the process tells nonsense")
        message = receive(self._connection, size).decode(errors="replace")
        error = MediaTooLargeError if kind == TOO_LARGE else MediaDecodeError
        return error(message, job.parameter)

    def kill(self) -> None:
        """End the process."""
        self._child.kill()

    def close(self) -> None:
        """End the process, and wait for that."""
        self.kill()
        self._connection.close()
        with suppress(OSError):
            self._child.wait()


def process_count(asked: int | None) -> int:
    """How many processes decode: as many as an option asks for, or one per CPU, but no more than a few."""
    return asked or min(MOST_PROCESSES, os.cpu_count() or 1)


class ProcessPool(Generic[Scalar]):
    """Has jobs done in processes, at most so many at a time. Thread-safe.

    They are started when first needed, and end with this process. One that dies of a file is replaced, and only that
    file is an error.
    """

    def __init__(self, module: str, processes: int) -> None:
        """`module` is what a process runs."""
        self._module = module
        self._executor = ThreadPoolExecutor(processes, thread_name_prefix="decode")
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def run(self, job: Job[Scalar], data: bytes) -> NDArray[Scalar]:
        """Do a job; waits while all processes are busy.

        Raises `MediaDecodeError` for a broken file, or one that ends its process; `MediaTooLargeError` for one that is
        larger than the job allows; and `QueueFullError` when the pool is closed or no process can be started.
        """
        return self._submit(job, data).result()

    async def arun(self, job: Job[Scalar], data: bytes) -> NDArray[Scalar]:
        """As `run`, without blocking the event loop."""
        return await asyncio.wrap_future(self._submit(job, data))

    def pids(self) -> set[int]:
        """Processes that are there now."""
        with self._lock:
            return {each.pid for each in (*self._idle, *self._busy)}

    def _submit(self, job: Job[Scalar], data: bytes) -> "Future[NDArray[Scalar]]":
        try:
            return self._executor.submit(self._run, job, data)
        except RuntimeError:
            raise QueueFullError("the server is shutting down") from None

    def _run(self, job: Job[Scalar], data: bytes) -> NDArray[Scalar]:
        process = self._take(job.subject)
        lives = False
        try:
            found = process.ask(job, data)
            lives = True
        except OSError:
            message = "cannot be decoded: it took too much time or memory, or broke the decoder"
            found = MediaDecodeError(f"the {job.subject} {message}", job.parameter)
        finally:
            self._give_back(process, lives)
        if isinstance(found, Exception):
            raise found
        return found

    def _take(self, subject: str) -> _Process:
        with self._lock:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            # One that was ended by others while it had nothing to do must not cost a file.
            while self._idle and not self._idle[-1].lives:
                self._idle.pop().close()
            try:
                process = self._idle.pop() if self._idle else _Process(self._module)
            except OSError as error:
                raise QueueFullError(f"cannot start a process to decode the {subject}: {error.strerror}") from None
            self._busy.add(process)
            return process

    def _give_back(self, process: _Process, lives: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            lives = lives and not self._closed
            if lives:
                self._idle.append(process)
        if not lives:
            process.close()

    def close(self) -> None:
        """End the processes; whoever waits gets an error. May be called again."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for each in busy:
            each.kill()
        for each in idle:
            each.close()
        self._executor.shutdown(wait=True, cancel_futures=True)


def _environment() -> dict[str, str]:
    """The process must find the same jaxllm, installed or not."""
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    root = Path(__file__).resolve().parents[2]
    paths = [] if root.name in ("site-packages", "dist-packages") else [str(root)]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**variables, "PYTHONPATH": os.pathsep.join([*paths, *given]), "PYTHONDONTWRITEBYTECODE": "1"}
