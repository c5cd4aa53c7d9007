"""`VideoDecoder`: has videos decoded by processes that may die of them."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxllm.serving.media.decode import WHITE, Color
from jaxllm.serving.media.errors import MediaDecodeError
from jaxllm.serving.media.processes import ProcessPool
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.message import JOB, size_of, unpacked
from jaxllm.serving.media.video.sampling import FrameSampling

MODULE: Final = "jaxllm.serving.media.video.process"
CPU_SECONDS: Final = 60
"""For one file."""


@dataclass
class _VideoJob:
    """A file, to become frames."""

    limits: VideoLimits
    sampling: FrameSampling
    seconds: int
    background: Color
    sides: tuple[int, int] = field(default=(0, 0))
    """Width and height, once the process says so."""

    subject = "video"
    parameter = "video_url"

    def head(self, size: int) -> bytes:
        limits, sampling = self.limits, self.sampling
        numbers = limits.pixels, limits.all_pixels, limits.seconds, self.seconds, sampling.num_frames, sampling.fps
        return JOB.pack(size, *numbers, *self.background)

    def empty(self, first: int, second: int, size: int) -> NDArray[np.uint8] | None:
        self.sides = first, second
        pixels = first * second
        if not 0 < pixels <= self.limits.pixels:
            return None
        most = min(self.sampling.num_frames, self.limits.all_pixels // pixels)
        return np.empty(size, np.uint8) if size <= size_of(most, first, second) else None


class VideoDecoder:
    """Decodes videos in processes, at most so many at a time. Thread-safe; see `ProcessPool`."""

    def __init__(self, processes: int, limits: VideoLimits, *, cpu_seconds: int = CPU_SECONDS) -> None:
        self._limits, self._cpu_seconds = limits, cpu_seconds
        self._pool = ProcessPool[np.uint8](MODULE, processes)

    def decode(self, data: bytes, sampling: FrameSampling, background: Color = WHITE) -> VideoFrames:
        """Decode a file to the frames that `sampling` says; waits while all processes are busy.

        Raises `MediaDecodeError` for what is no video, or ends its process; `MediaTooLargeError` for what is larger
        than the limits; and `QueueFullError` when the decoder is closed or no process can be started.
        """
        job = _VideoJob(self._limits, sampling, self._cpu_seconds, background)
        answer = self._pool.run(job, data)
        try:
            return unpacked(answer, *job.sides)
        except ValueError as error:
            raise MediaDecodeError(f"the video cannot be decoded: {error}", "video_url") from None

    def pids(self) -> set[int]:
        """Processes that are there now."""
        return self._pool.pids()

    def close(self) -> None:
        """End the processes; whoever waits gets an error. May be called again."""
        self._pool.close()
