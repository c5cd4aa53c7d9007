"""The thread that writes copies of pages to files, after they have come to the host.

The engine's thread never waits for a disk. What a disk cannot keep up with, or cannot do, is left out and counted.
"""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from jaxllm.engine.offloading.pace import Pace
from jaxllm.kv.tiers.disk.folder import DiskFolder, FolderFullError
from jaxllm.kv.tiers.host_pool import Bytes, HostCopy, HostPool
from jaxllm.models.errors import ModelError

logger = logging.getLogger(__name__)

MOST_OFFERED = 1 << 16
"""Copies that wait to be written at most."""
BATCH = 16
"""Copies that are written before something else is looked after."""
SCAN_SECONDS = 30.0
"""What others have written is looked for so often, or less if looking takes more than a hundredth of the time."""
RETRY_SECONDS = 30.0
"""A disk that cannot be written is tried again after so long."""
ROOM_SECONDS = 1.0
"""How long to wait for another engine that makes room."""
CLOSE_SECONDS = 3.0
"""What waits to be written when an engine ends is written for so long."""
WRITER_NICE = 10
"""The thread that writes makes way for those that compute."""


class Problem:
    """Something that is told when it begins, and not again before it is over."""

    def __init__(self, text: str) -> None:
        self._text, self._is_told = text, False

    def report(self, error: Exception, more: str = "") -> None:
        """It has happened."""
        if not self._is_told:
            logger.warning("disk tier: %s: %s%s", self._text, error, more)
        self._is_told = True

    def over(self) -> None:
        """It has not happened."""
        if self._is_told:
            logger.info("disk tier: copies of KV pages are written again")
        self._is_told = False


class FileWriter:
    """Writes what is offered to a folder, which it opens first. Another thread calls it, and waits for nothing."""

    def __init__(self, host: HostPool, open_folder: Callable[[], DiskFolder], pace: Pace | None = None) -> None:
        """`open_folder` may take long. The thread keeps to a `pace`, if there is one."""
        self.num_dropped = self.num_failures = self.num_bytes = 0
        self.seconds = 0.0
        """So far: copies that were not written, times that it failed, and what was written in how long."""
        self.folder: DiskFolder | None = None
        """None until it is open."""
        self.is_off = False
        """Whether files are not used, or not any more."""
        self.is_clearing = False
        """Whether all files are about to be deleted."""
        self.tells = False
        """Whether `take_written` and `take_gone` have anything."""
        self._host, self._open_folder, self._pace = host, open_folder, pace
        self._offered: deque[HostCopy] = deque()
        self._used: deque[Sequence[bytes]] = deque(maxlen=1024)
        self._written: deque[HostCopy] = deque()
        self._gone: deque[tuple[bytes, int]] = deque()
        self._wake, self._is_ready = threading.Event(), threading.Event()
        self._is_closing = False
        self._buffer: Bytes = np.empty(0, np.uint8)  # kept: new memory has to be made by the system each time
        self._problem = Problem("copies of KV pages cannot be written")
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="kv-disk-write", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Copies that wait to be written."""
        return len(self._offered)

    def offer(self, copy: HostCopy) -> None:
        """A copy that is on the host is worth a file."""
        if self.is_off:
            return
        if len(self._offered) >= MOST_OFFERED:
            self.num_dropped += 1
            return
        self._offered.append(copy)
        self._wake.set()

    def used(self, digests: Sequence[bytes]) -> None:
        """These were used now, the last one last."""
        self._used.append(digests)

    def take_written(self) -> list[HostCopy]:
        """Copies that have got files since the last call."""
        return [self._written.popleft() for _ in range(len(self._written))]

    def take_gone(self) -> list[tuple[bytes, int]]:
        """Digests and parts whose files are gone since the last call, so far as is known."""
        return [self._gone.popleft() for _ in range(len(self._gone))]

    def clear(self) -> None:
        """Delete the files of the engine's layout."""
        self._offered.clear()
        self.is_clearing = True
        self._wake.set()

    def stop(self, reason: str) -> None:
        """Write no files from now on."""
        if not self.is_off:
            logger.warning("disk tier: %s; no files are read or written until the engine is started again", reason)
        self.is_off = True
        self._offered.clear()

    def wait_until_ready(self, seconds: float) -> bool:
        """Whether the folder is open, after waiting for that for so long at most."""
        return self._is_ready.wait(seconds)

    def close(self) -> None:
        """Write what waits, for a moment, and end the thread; one that is stuck ends with the process."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)

    # In the thread

    def _run(self) -> None:
        if sys.platform == "linux":
            # Nobody waits for it. There, the number of a thread is one of a process.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICE)
        try:
            folder = self._open_folder()
        except (OSError, ModelError) as error:
            self.stop(f"kv_offloading_path is not used: {error}")
            self._is_ready.set()
            return
        logger.info(
            "disk tier: %s has copies of %d pages; %.1f of %.1f GiB are used",
            folder.root, len(folder), folder.total / 2**30, folder.limit / 2**30,
        )  # fmt: skip
        self.folder = folder
        self._is_ready.set()
        self._write_until_closed(folder)

    def _write_until_closed(self, folder: DiskFolder) -> None:
        next_scan = time.monotonic() + SCAN_SECONDS
        deadline: float | None = None
        while True:
            folder.on_gone = self._note_gone if self.tells else None
            try:
                self._write_some(folder, deadline)
                if time.monotonic() >= next_scan:
                    folder.look_again()
            except OSError as error:
                self._failed(error)
            if time.monotonic() >= next_scan:
                next_scan = time.monotonic() + max(SCAN_SECONDS, 100 * folder.scan_seconds)
            if self._is_closing:
                deadline = deadline or time.monotonic() + CLOSE_SECONDS
                if not self._offered or time.monotonic() > deadline:
                    self._touch(folder)
                    return
            elif not self._offered:
                self._wake.wait(max(0.0, next_scan - time.monotonic()))
                self._wake.clear()

    def _note_gone(self, digest: bytes, part: int) -> None:
        self._gone.append((digest, part))

    def _write_some(self, folder: DiskFolder, deadline: float | None) -> None:
        """Write what is offered, until something else is to be done."""
        self._touch(folder)
        for _ in range(BATCH):
            if self.is_clearing:
                folder.clear()
                self.is_clearing = False
            if not self._offered or (deadline is not None and time.monotonic() > deadline):
                return
            used = time.thread_time()
            self._write(folder, self._offered.popleft())
            if self._pace is not None:
                self._pace.rest(time.thread_time() - used)

    def _touch(self, folder: DiskFolder) -> None:
        while self._used:
            folder.touch(self._used.popleft())

    def _write(self, folder: DiskFolder, copy: HostCopy) -> None:
        if folder.has(copy.digest, copy.part):
            return
        begin = time.monotonic()
        if len(self._buffer) < copy.size:
            self._buffer = np.empty(copy.size, np.uint8)
        data = self._buffer[: copy.size]
        # Nobody else waits for this thread: the copy's place may be given to another one while it is read. Then it is
        # gone afterwards, since it goes first.
        is_off = self.is_off or begin < self._retry_at
        if is_off or copy.state != "ready" or not self._host.read(copy, data) or copy.state != "ready":
            self.num_dropped += 1
            return
        try:
            self._try_to_write(folder, copy, data)
        except FolderFullError as error:
            self.num_dropped += 1
            self._problem.report(error)
            return
        except OSError as error:
            self.num_dropped += 1
            self._failed(error)
            return
        self._problem.over()
        if self.tells:
            self._written.append(copy)
        self.num_bytes += copy.size
        self.seconds += time.monotonic() - begin

    def _try_to_write(self, folder: DiskFolder, copy: HostCopy, data: np.ndarray) -> None:
        deadline = time.monotonic() + ROOM_SECONDS
        while True:
            try:
                folder.write(copy.digest, copy.part, data, copy.checksum)
            except FolderFullError:
                if len(data) > folder.limit or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _failed(self, error: Exception) -> None:
        self.num_failures += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._problem.report(error, f"; trying again every {RETRY_SECONDS:.0f} s")
