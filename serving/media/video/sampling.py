"""Which frames of a file are used, by vLLM's rule."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import numpy as np

from jaxllm.errors import ConfigError, JaxLLMError, RequestError, quoted

DEFAULT_FRAMES: Final = 32
"""vLLM's default."""
FIELDS: Final = ("num_frames", "fps")


@dataclass(frozen=True)
class FrameSampling:
    """At most `num_frames` frames, and at most `fps` of each second if that is not 0, evenly spread."""

    num_frames: int = DEFAULT_FRAMES
    fps: float = 0.0

    @classmethod
    def read(cls, kwargs: Mapping[str, Any] | None, most: int) -> Self:
        """From "video" in --media-io-kwargs, for at most so many frames. Raises `ConfigError`."""
        return cls(min(DEFAULT_FRAMES, most)).overridden(kwargs, most, ConfigError)

    def overridden(self, kwargs: Mapping[str, Any] | None, most: int, error: type[JaxLLMError] = RequestError) -> Self:
        """The same with what a request's media_io_kwargs say of videos. Raises `error`.

        -1 frames are all, as far as they are allowed; -1 frames per second are those of the file.
        """
        fail = partial(RequestError, parameter="media_io_kwargs") if error is RequestError else error
        if error is RequestError and set(kwargs or {}) - {"video"}:
            raise fail(f'media_io_kwargs={quoted(kwargs)}: requests may have {{"video"}} alone')
        given = (kwargs or {}).get("video", {})
        if not isinstance(given, Mapping) or set(given) - set(FIELDS):
            raise fail(f"media_io_kwargs: video={quoted(given)}: expected an object with {' and '.join(FIELDS)}")
        count, fps = given.get("num_frames", self.num_frames), given.get("fps", self.fps)
        if type(count) is not int or not (count == -1 or 1 <= count <= most):
            raise fail(
                f"media_io_kwargs: num_frames={quoted(count)}: expected 1 to {most} (max_video_frames), or -1 for all"
            )
        is_number = isinstance(fps, (int, float)) and not isinstance(fps, bool)
        if not is_number or not (fps == -1 or 0 <= fps <= 1000):
            raise fail(f"media_io_kwargs: fps={quoted(fps)}: expected a number up to 1000, or -1 for all frames")
        return replace(self, num_frames=most if count == -1 else count, fps=max(float(fps), 0.0))

    def indices(self, total: int, duration: float) -> list[int]:
        """The numbers of the frames, of `total` in so many seconds."""
        count = min(self.num_frames, total)
        if self.fps > 0:
            count = min(count, math.floor(duration * self.fps))
        found: list[int] = np.linspace(0, total - 1, max(count, 1)).astype(int).tolist()
        return found
