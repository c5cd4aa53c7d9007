"""`python -m jaxllm.serving.media.decoder_process`: decodes images that nobody has looked at.

Not for people: `DecoderPool` starts it.
"""

import struct
from typing import Final

from jaxllm.serving.media.decode import BYTES_PER_PIXEL, decode, open_image
from jaxllm.serving.media.worker import ANSWER, DONE, SPARE_MEMORY, limit_memory, limit_time, main

JOB: Final = struct.Struct("!QQIBBB")
"""Bytes of the file, most pixels, CPU seconds, and the background's colour."""


def work(data: bytes, most_pixels: int, seconds: int, *background: int) -> tuple[bytes, bytes]:
    """Do a job: the head of its answer, with width and height, and the pixels."""
    limit_time(seconds)
    limit_memory(SPARE_MEMORY)
    red, green, blue = background
    width, height = open_image(data, most_pixels).size
    # The header is read before the memory is allowed that it asks for.
    limit_memory(SPARE_MEMORY + BYTES_PER_PIXEL * width * height)
    found = decode(data, most_pixels, (red, green, blue))
    return ANSWER.pack(DONE, found.width, found.height, len(found.pixels)), found.pixels


if __name__ == "__main__":
    main(JOB, work)
