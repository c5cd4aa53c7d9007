"""`python -m jaxllm.serving.media.audio.process`: decodes sound that nobody has listened to.

Not for people: `SoundDecoder` starts it.
"""

import struct
from typing import Final

from jaxllm.serving.media.audio.files import decode
from jaxllm.serving.media.audio.resample import RATE
from jaxllm.serving.media.worker import ANSWER, DONE, SPARE_MEMORY, limit_memory, limit_time, main

JOB: Final = struct.Struct("!QII")
"""Bytes of the file, most seconds of sound, and CPU seconds."""
_BYTES_PER_SAMPLE: Final = 8
"""Of the result, in parts and whole."""


def work(data: bytes, most_seconds: int, cpu_seconds: int) -> tuple[bytes, bytes | memoryview]:
    """Do a job: the head of its answer, and the samples."""
    limit_time(cpu_seconds)
    limit_memory(2 * SPARE_MEMORY + _BYTES_PER_SAMPLE * RATE * most_seconds)
    samples = decode(data, most_seconds)
    return ANSWER.pack(DONE, 0, 0, samples.nbytes), samples.data.cast("B")


if __name__ == "__main__":
    main(JOB, work)
