"""Small videos whose frames tell their number."""

import io
from typing import Any

import numpy as np
from PIL import Image

FPS = 10


def shade(number: int) -> int:
    """The brightness of a frame."""
    return 20 + 5 * (number % 44)


def frames(count: int, height: int = 48, width: int = 64) -> list[np.ndarray]:
    """Frames of one colour each, uint8 [height, width, 3]."""
    return [np.full((height, width, 3), shade(number), np.uint8) for number in range(count)]


def numbers_of(found: np.ndarray) -> list[int]:
    """The numbers that frames uint8 [F, height, width, 3] tell."""
    return [round((float(frame.mean()) - 20) / 5) for frame in found]


def clip(
    count: int = 20, kind: str = "mp4", codec: str = "mpeg4", *, height: int = 48, width: int = 64, gop: int = 12,
    pieces: bool = False, noise: bool = False, corner: bool = False,
) -> bytes:  # fmt: skip
    """A file with so many frames; in `pieces` it can be read from the beginning on."""
    import av

    file = io.BytesIO()
    options = {"movflags": "frag_keyframe+empty_moov"} if pieces else {}
    with av.open(file, "w", format=kind, options=options) as container:
        stream: Any = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", gop
        stream.bit_rate = 2_000_000
        drawn = np.random.default_rng(0)
        for plain in frames(count, height, width):
            image = drawn.integers(0, 256, plain.shape, dtype=np.uint8) if noise else plain
            if corner:
                image[:16, :16] = 255
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()


def tone_alone() -> bytes:
    """An MP4 with sound and no video."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    return file.getvalue()


def animation(count: int, kind: str = "GIF", milliseconds: int = 100) -> bytes:
    """An animated GIF or WebP."""
    file = io.BytesIO()
    first, *others = [Image.fromarray(frame) for frame in frames(count)]
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    first.save(file, kind, save_all=True, append_images=others, duration=milliseconds, loop=0, **options)
    return file.getvalue()
