"""Copies in files: a thread writes what has come to the host, and another one brings it back there."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxllm.engine.offloading.file_writer import CLOSE_SECONDS, FileWriter, Problem
from jaxllm.engine.offloading.pace import Pace
from jaxllm.engine.offloading.transfers import Worker
from jaxllm.kv.tiers.disk.folder import DiskFolder
from jaxllm.kv.tiers.disk.page_file import DamagedFileError
from jaxllm.kv.tiers.host_pool import Bytes, HostCopy, HostPool
from jaxllm.kv.tiers.promotions import Promotion

logger = logging.getLogger(__name__)

BATCH = 16
"""Copies that are read before the engine hears of them."""
LEAST_PATIENCE, MOST_PATIENCE = 0.5, 30.0
UNMEASURED_PATIENCE = 10.0
"""Seconds that a request waits for files at most; it is as long as computing would take, where that is known."""


@dataclass(eq=False)
class Read:
    """Copies of a promotion, and their checksums once they have come; None where they have not."""

    promotion: Promotion
    copies: list[HostCopy]
    checksums: list[int | None]
    seconds: float = 0.0


class DiskTier:
    """Belongs to a host tier, whose thread calls everything here. `has` is `Files.has`."""

    def __init__(
        self,
        host: HostPool,
        open_folder: Callable[[], DiskFolder],
        sizes: tuple[int, int],
        states: int,
        news: threading.Event,
        token_seconds: float | None = None,
        description: str = "",
        pace: Pace | None = None,
    ) -> None:
        """`open_folder` may take long. `sizes` are bytes of a page and of a state, whose part is number `states`.

        `news` is set when something has been read. A token takes `token_seconds` to compute, where that is known.
        Threads keep to a `pace`, if there is one.
        """
        self.num_failures = self.read_bytes = 0
        self.read_seconds = 0.0
        """So far: files that could not be read, and what was read in how long."""
        self.description = description
        self.writer = FileWriter(host, open_folder, pace)
        self._host, self._sizes, self._states, self._token_seconds = host, sizes, states, token_seconds
        self._buffer: Bytes = np.empty(0, np.uint8)  # kept: new memory has to be made by the system each time
        self._problem = Problem("a copy of KV pages cannot be read, and is computed again")
        self._reader: Worker[Read] = Worker(
            "kv-disk-read", self._read, news, pace=pace, awaited=lambda job: sum(copy.size for copy in job.copies)
        )

    @property
    def usage(self) -> float:
        """Share of the folder's limit that is used, 0 to 1."""
        return 0.0 if self.writer.folder is None else self.writer.folder.usage

    def has(self, digest: bytes, part: int) -> bool:
        """Whether there was a copy when that was last looked at."""
        writer = self.writer
        if writer.folder is None or writer.is_off or writer.is_clearing:
            return False
        return writer.folder.has(digest, part)

    def size(self, part: int) -> int:
        """Bytes of a copy."""
        return self._sizes[self.is_state(part)]

    def is_state(self, part: int) -> bool:
        """Whether it is of states rather than of a page."""
        return part == self._states

    def patience(self, num_tokens: int) -> float:
        """Seconds that a request may wait for so many tokens."""
        if self._token_seconds is None:
            return UNMEASURED_PATIENCE
        return min(max(self._token_seconds * num_tokens, LEAST_PATIENCE), MOST_PATIENCE)

    def offer(self, copy: HostCopy) -> None:
        """A copy that is on the host now is worth a file, unless it has one."""
        if not self.has(copy.digest, copy.part):
            self.writer.offer(copy)

    def promote(self, promotion: Promotion) -> None:
        """Begin to bring copies to the host; `promoted` has them later."""
        for first in range(0, len(promotion.copies), BATCH):
            some = promotion.copies[first : first + BATCH]
            self._reader.give(Read(promotion, some, [None] * len(some)))

    def promoted(self) -> list[Read]:
        """What has come since the last call, or could not be read."""
        found = self._reader.take()
        for job in found:
            self.read_seconds += job.seconds
            pairs = zip(job.copies, job.checksums, strict=True)
            self.read_bytes += sum(copy.size for copy, found in pairs if found is not None)
        return found

    def close(self) -> None:
        """Write what waits, for a moment, and end the threads; one that is stuck ends with the process."""
        self.writer.close()
        self._reader.close(CLOSE_SECONDS)

    # In the thread that reads

    def _read(self, job: Read) -> None:
        for index, copy in enumerate(job.copies):
            if not job.promotion.is_over:
                job.checksums[index] = self._read_one(copy)

    def _read_one(self, copy: HostCopy) -> int | None:
        folder = self.writer.folder
        if folder is None or self.writer.is_clearing or self.writer.is_off:
            return None
        if len(self._buffer) < copy.size:
            self._buffer = np.empty(copy.size, np.uint8)
        data = self._buffer[: copy.size]
        try:
            wanted = folder.read(copy.digest, copy.part, data)
            found = self._host.fill(copy, data)
            if found != wanted:
                raise DamagedFileError("has other bytes than were written")
        except FileNotFoundError:
            # Another engine has evicted it.
            folder.forget(copy.digest, copy.part)
            return None
        except DamagedFileError as error:
            folder.discard(copy.digest, copy.part)
            self._cannot_read(error)
            return None
        except OSError as error:
            folder.forget(copy.digest, copy.part)
            self._cannot_read(error)
            return None
        return found

    def _cannot_read(self, error: Exception) -> None:
        self.num_failures += 1
        self._problem.report(error)
