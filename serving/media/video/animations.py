"""Frames of GIF and WebP, with Pillow."""

import warnings
from typing import Any, Final

import numpy as np

from jaxllm.serving.media.decode import Color, check_pixels, open_image, to_rgb
from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.sampling import FrameSampling

STILL: Final = 100.0
"""Milliseconds that browsers show a frame which says nothing of it."""


def is_animation(data: bytes) -> bool:
    """Whether a file is GIF or WebP, by its first bytes."""
    return data.startswith((b"GIF87a", b"GIF89a")) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def decode_animation(data: bytes, limits: VideoLimits, sampling: FrameSampling, background: Color) -> VideoFrames:
    """Decode a file. Raises `MediaDecodeError` and `MediaTooLargeError`."""
    image: Any = open_image(data, limits.pixels)
    width, height = image.size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = int(getattr(image, "n_frames", 1))
            limits.reserve(width, height, 1)
            seconds = 0.0
            for number in range(total):
                image.seek(number)
                image.load()
                seconds += (image.info.get("duration") or STILL) / 1000
                limits.check_seconds(seconds)
            indices = sampling.indices(total, seconds)
            limits.check_frames(width, height, len(indices))
            frames = np.empty((len(indices), height, width, 3), np.uint8)
            for place, number in enumerate(indices):
                image.seek(number)
                image.load()
                check_pixels(image.size, limits.pixels)
                frames[place] = np.asarray(to_rgb(image.copy(), background))
    except (MediaDecodeError, MediaTooLargeError, MemoryError):
        raise
    # What a broken file makes of a decoder is anybody's guess.
    except Exception as error:  # noqa: BLE001
        raise MediaDecodeError(f"the video cannot be decoded: {type(error).__name__}") from None
    return VideoFrames(frames, tuple(indices), total, total / seconds, seconds)
