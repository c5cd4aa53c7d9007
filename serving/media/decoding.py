"""`DecoderPool`: has images decoded by processes that may die of them."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxllm.errors import QueueFullError
from jaxllm.serving.media.decode import WHITE, Color
from jaxllm.serving.media.decoder_process import ANSWER, JOB, PIXELS, TOO_LARGE, receive, receive_into
from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError

MODULE: Final = "jaxllm.serving.media.decoder_process"
CPU_SECONDS: Final = 10
"""For one image."""
WALL_FACTOR: Final = 3
"""By the clock, so many times the CPU seconds: the machine may be busy."""
MOST_MESSAGE: Final = 4096
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Variables that the process sees: it has no use for keys."""


class _Process:
    """One process, which decodes one image at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                # -P: a file of the user's must not be imported from the working directory.
                [sys.executable, "-P", "-m", MODULE],
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

    def ask(self, data: bytes, most_pixels: int, seconds: int, background: Color) -> NDArray[np.uint8] | Exception:
        """The pixels, or the error of this image. Raises `OSError` if the process dies of it or takes too long."""
        # It also ends a process that is stopped.
        timer = threading.Timer(WALL_FACTOR * seconds, self.kill)
        timer.daemon = True
        timer.start()
        try:
            self._connection.sendall(JOB.pack(len(data), most_pixels, seconds, *background))
            self._connection.sendall(data)
            head = receive(self._connection, ANSWER.size)
            if len(head) < ANSWER.size:
                raise ConnectionResetError("the process has ended")
            kind, width, height, size = ANSWER.unpack(head)
            return self._read(kind, width, height, size, most_pixels)
        finally:
            timer.cancel()

    def _read(self, kind: int, width: int, height: int, size: int, most_pixels: int) -> NDArray[np.uint8] | Exception:
        """What follows the head. The process may be an attacker's by now: nothing it says is taken on trust."""
        if kind == PIXELS:
            if size != 3 * width * height or not 0 < width * height <= most_pixels:
                raise ConnectionResetError("the process tells nonsense")
            pixels = np.empty((height, width, 3), np.uint8)
            if receive_into(self._connection, pixels.data.cast("B")) < size:
                raise ConnectionResetError("the process has ended")
            return pixels
        if size > MOST_MESSAGE:
            raise ConnectionResetError("the process tells nonsense")
        message = receive(self._connection, size).decode(errors="replace")
        return MediaTooLargeError(message) if kind == TOO_LARGE else MediaDecodeError(message)

    def kill(self) -> None:
        """End the process."""
        self._child.kill()

    def close(self) -> None:
        """End the process, and wait for that."""
        self.kill()
        self._connection.close()
        with suppress(OSError):
            self._child.wait()


class DecoderPool:
    """Decodes images in processes, at most so many at a time. Thread-safe.

    They are started when first needed, and end with this process. One that dies of an image is replaced, and only that
    image is an error.
    """

    def __init__(self, processes: int, *, seconds: int = CPU_SECONDS) -> None:
        """`seconds` of CPU time for one image."""
        self._seconds = seconds
        self._executor = ThreadPoolExecutor(processes, thread_name_prefix="decode")
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def decode(self, data: bytes, most_pixels: int, background: Color = WHITE) -> NDArray[np.uint8]:
        """Decode a file to uint8 [height, width, 3], RGB; waits while all processes are busy.

        Raises `MediaDecodeError` for what is no image, or ends its process; `MediaTooLargeError` for more than
        `most_pixels`; and `QueueFullError` when the pool is closed or no process can be started.
        """
        try:
            return self._executor.submit(self._decode, data, most_pixels, background).result()
        except RuntimeError:
            raise QueueFullError("the server is shutting down") from None

    async def adecode(self, data: bytes, most_pixels: int, background: Color = WHITE) -> NDArray[np.uint8]:
        """As `decode`, without blocking the event loop."""
        try:
            work = self._executor.submit(self._decode, data, most_pixels, background)
        except RuntimeError:
            raise QueueFullError("the server is shutting down") from None
        return await asyncio.wrap_future(work)

    def pids(self) -> set[int]:
        """Processes that are there now."""
        with self._lock:
            return {each.pid for each in (*self._idle, *self._busy)}

    def _decode(self, data: bytes, most_pixels: int, background: Color) -> NDArray[np.uint8]:
        process = self._take()
        lives = False
        try:
            found = process.ask(data, most_pixels, self._seconds, background)
            lives = True
        except OSError:
            found = MediaDecodeError(
                "the image cannot be decoded: it took too much time or memory, or broke the decoder"
            )
        finally:
            self._give_back(process, lives)
        if isinstance(found, Exception):
            raise found
        return found

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            # One that was ended by others while it had nothing to do must not cost an image.
            while self._idle and not self._idle[-1].lives:
                self._idle.pop().close()
            try:
                process = self._idle.pop() if self._idle else _Process()
            except OSError as error:
                raise QueueFullError(f"cannot start a process to decode images: {error.strerror}") from None
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
