"""`python -m jaxllm.serving.media.video.process`: decodes videos that nobody has looked at.

Not for people: `VideoDecoder` starts it.
"""

from jaxllm.serving.media.video.animations import decode_animation, is_animation
from jaxllm.serving.media.video.files import decode_file
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.message import JOB, packed
from jaxllm.serving.media.video.sampling import FrameSampling
from jaxllm.serving.media.worker import ANSWER, DONE, SPARE_MEMORY, limit_memory, limit_time, main

_BYTES_PER_PIXEL = 4
"""Of the frames that are used: RGB, and what is left over."""
_OF_DECODER = 64
"""Bytes for each pixel of a frame: a decoder keeps up to 16 others, and there are copies in four channels."""


def work(
    data: bytes,
    pixels: int,
    all_pixels: int,
    most_seconds: int,
    cpu_seconds: int,
    num_frames: int,
    fps: float,
    *background: int,
) -> tuple[bytes, bytes | memoryview]:
    """Do a job: the head of its answer with what `packed` says, and the pixels of frames."""
    limit_time(cpu_seconds)
    limit_memory(2 * SPARE_MEMORY)
    limits, sampling = VideoLimits(pixels, most_seconds, all_pixels, _reserve), FrameSampling(num_frames, fps)
    red, green, blue = background
    if is_animation(data):
        found = decode_animation(data, limits, sampling, (red, green, blue))
    else:
        found = decode_file(data, limits, sampling)
    head = packed(found)
    height, width = found.frames.shape[1:3]
    return ANSWER.pack(DONE, width, height, len(head) + found.frames.nbytes) + head, found.frames.data.cast("B")


def _reserve(width: int, height: int, count: int) -> None:
    """Allow the memory that a header asks for, which is within the limits."""
    limit_memory(2 * SPARE_MEMORY + (_BYTES_PER_PIXEL * count + _OF_DECODER) * width * height)


if __name__ == "__main__":
    main(JOB, work)
