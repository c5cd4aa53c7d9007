"""`DecoderPool`: has images decoded by processes that may die of them."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxllm.serving.media.decode import WHITE, Color
from jaxllm.serving.media.decoder_process import JOB
from jaxllm.serving.media.processes import ProcessPool

MODULE: Final = "jaxllm.serving.media.decoder_process"
CPU_SECONDS: Final = 10
"""For one image."""


@dataclass(frozen=True)
class _ImageJob:
    """An image, to become uint8 [height, width, 3]."""

    most_pixels: int
    seconds: int
    background: Color

    subject = "image"
    parameter = "image_url"

    def head(self, size: int) -> bytes:
        return JOB.pack(size, self.most_pixels, self.seconds, *self.background)

    def empty(self, first: int, second: int, size: int) -> NDArray[np.uint8] | None:
        width, height = first, second
        possible = size == 3 * width * height and 0 < width * height <= self.most_pixels
        return np.empty((height, width, 3), np.uint8) if possible else None


class DecoderPool:
    """Decodes images in processes, at most so many at a time. Thread-safe.

    They are started when first needed, and end with this process. One that dies of an image is replaced, and only that
    image is an error.
    """

    def __init__(self, processes: int, *, seconds: int = CPU_SECONDS) -> None:
        """`seconds` of CPU time for one image."""
        self._seconds = seconds
        self._pool = ProcessPool[np.uint8](MODULE, processes)

    def decode(self, data: bytes, most_pixels: int, background: Color = WHITE) -> NDArray[np.uint8]:
        """Decode a file to uint8 [height, width, 3], RGB; waits while all processes are busy.

        Raises `MediaDecodeError` for what is no image, or ends its process; `MediaTooLargeError` for more than
        `most_pixels`; and `QueueFullError` when the pool is closed or no process can be started.
        """
        return self._pool.run(_ImageJob(most_pixels, self._seconds, background), data)

    async def adecode(self, data: bytes, most_pixels: int, background: Color = WHITE) -> NDArray[np.uint8]:
        """As `decode`, without blocking the event loop."""
        return await self._pool.arun(_ImageJob(most_pixels, self._seconds, background), data)

    def pids(self) -> set[int]:
        """Processes that are there now."""
        return self._pool.pids()

    def close(self) -> None:
        """End the processes; whoever waits gets an error. May be called again."""
        self._pool.close()
