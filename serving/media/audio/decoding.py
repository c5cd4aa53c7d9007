"""`SoundDecoder`: has sound decoded by processes that may die of it."""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.media.processes import ProcessPool

MODULE: Final = "jaxllm.serving.media.audio.process"
JOB: Final = struct.Struct("!QII")
"""As the process has it, which this one does not import, because it loads the decoders."""
CPU_SECONDS: Final = 60
"""For one file."""


@dataclass(frozen=True)
class _SoundJob:
    """A file, to become float32 [samples]."""

    most_seconds: int
    seconds: int

    subject = "sound"
    parameter = "file"

    def head(self, size: int) -> bytes:
        return JOB.pack(size, self.most_seconds, self.seconds)

    def empty(self, first: int, second: int, size: int) -> NDArray[np.float32] | None:
        del first, second
        count, rest = divmod(size, 4)
        return np.empty(count, np.float32) if not rest and 0 < count <= self.most_seconds * RATE + 1 else None


class SoundDecoder:
    """Decodes sound in processes, at most so many at a time. Thread-safe; see `ProcessPool`."""

    def __init__(self, processes: int, most_seconds: int, *, cpu_seconds: int = CPU_SECONDS) -> None:
        """`most_seconds` of sound, for which a process may take `cpu_seconds`."""
        self._job = _SoundJob(most_seconds, cpu_seconds)
        self._pool = ProcessPool[np.float32](MODULE, processes)

    async def decode(self, data: bytes) -> Samples:
        """Decode a file to float32 [samples], one channel of 16 kHz.

        Raises `MediaDecodeError` for what is no sound, or ends its process; `MediaTooLargeError` for too many seconds;
        and `QueueFullError` when the decoder is closed or no process can be started.
        """
        return await self._pool.arun(self._job, data)

    def pids(self) -> set[int]:
        """Processes that are there now."""
        return self._pool.pids()

    def close(self) -> None:
        """End the processes; whoever waits gets an error. May be called again."""
        self._pool.close()
