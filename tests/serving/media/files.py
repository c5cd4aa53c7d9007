"""Files of images, good and hostile."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def gradient(height: int = 24, width: int = 36) -> NDArray[np.uint8]:
    """Different in every direction: uint8 [height, width, 3]."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (height + width)], 2).astype(np.uint8)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk with its checksum."""
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))


def png_bomb(width: int, height: int, level: int = 9) -> bytes:
    """A grey image of zeros: a thousandth of its pixels in bytes."""
    packer = zlib.compressobj(level)
    row = bytes(1 + width)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack("!IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = png_chunk(b"IHDR", head) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def jpeg_of_many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is there again and again: each costs a pass over the whole image."""
    data = encoded(Image.fromarray(gradient(side, side)), "JPEG", progressive=True, quality=30)
    last = data.rindex(b"\xff\xda")
    # The scan's own tables stand in front of it.
    return data[:-2] + data[last:-2] * scans + b"\xff\xd9"
