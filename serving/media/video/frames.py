"""`VideoFrames`: frames of a video, and when they are shown; also as callers give them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.media.image_processors.base import Bytes
from jaxllm.serving.media.pictures import pixels_of

FIELD: Final = "multi_modal_data"

_METADATA: Final = frozenset(
    {
        "fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames",
        # Nothing that is seen depends on these.
        "video_backend", "width", "height",
    }
)  # fmt: skip
"""Keys of vLLM's metadata, which are those of transformers' `VideoMetadata`."""


@dataclass(frozen=True, eq=False)
class VideoFrames:
    """`frames` uint8 [F, height, width, 3], RGB, of a video that has `fps` frames per second and `total` in all.

    `indices` are the numbers of the frames among these. `fps` is None where nobody knows. `duration` is in seconds.
    """

    frames: Bytes
    indices: tuple[int, ...]
    total: int
    fps: float | None = None
    duration: float | None = None

    @property
    def sampled_fps(self) -> float:
        """Frames per second that were taken; transformers takes 24 where it knows nothing."""
        return 24.0 if self.fps is None else len(self.indices) / self.total * self.fps


def videos_of(given: Any, parameter: str = FIELD) -> list[VideoFrames]:
    """The videos in vLLM's `multi_modal_data["video"]`: one or a list. Raises `RequestError`.

    A video is an array uint8 [frames, height, width, 3], a list of images of Pillow or of arrays [height, width, 3], or
    a pair of one of these and a dictionary of metadata.
    """
    if given is None:
        return []
    if isinstance(given, list) and given and not _is_frame(given[0]):
        return [_video(each, parameter) for each in given]
    return [_video(given, parameter)]


def _is_frame(given: Any) -> bool:
    return isinstance(given, Image.Image) or getattr(given, "ndim", None) == 3


def _video(given: Any, parameter: str) -> VideoFrames:
    metadata: Any = {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        given, metadata = given
    return _with_metadata(_pixels(given, parameter), metadata, parameter)


def _pixels(given: Any, parameter: str) -> Bytes:
    if isinstance(given, (list, tuple)) and given:
        frames = [pixels_of(each, parameter) for each in given]
        if len({frame.shape for frame in frames}) > 1:
            raise RequestError(f"{parameter}: the frames of a video differ in size", parameter)
        return np.stack(frames)
    array = np.asarray(given)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or not array.size:
        raise RequestError(
            f"{parameter}: expected a video, an array uint8 [frames, height, width, 3] or a list of images, got "
            f"{type(given).__name__} of type {array.dtype} and shape {list(array.shape)}",
            parameter,
        )
    return np.ascontiguousarray(array)


def _with_metadata(frames: Bytes, metadata: Mapping[str, Any], parameter: str) -> VideoFrames:
    for key in metadata:
        if key not in _METADATA:
            raise RequestError(f"{parameter}: unknown key {quoted(key)} in the metadata of a video", parameter)
    if metadata.get("do_sample_frames"):
        raise RequestError(
            f"{parameter}: do_sample_frames is not supported: all frames that are given are used, so give those to see",
            parameter,
        )
    count = len(frames)
    indices = metadata.get("frames_indices")
    listed = list(range(count)) if indices is None else np.asarray(indices).tolist()
    total = metadata.get("total_num_frames")
    total = max([count, *(index + 1 for index in listed)]) if total is None else total
    fps, duration = metadata.get("fps"), metadata.get("duration")
    _check(
        isinstance(listed, list) and len(listed) == count and all(type(each) is int and each >= 0 for each in listed),
        f"frames_indices: expected a number for each of {count} frames",
        parameter,
    )
    _check(type(total) is int and total >= 1, f"total_num_frames={quoted(total)}: expected an integer", parameter)
    for name, value in (("fps", fps), ("duration", duration)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6
        _check(value is None or is_number, f"{name}={quoted(value)}: expected a positive number", parameter)
    if fps is not None:
        fps = float(fps)
        _check(max(listed) / fps < 1e6, f"the frames would last {max(listed) / fps:g} s", parameter)
    return VideoFrames(frames, tuple(listed), total, fps, None if duration is None else float(duration))


def _check(is_right: bool, message: str, parameter: str) -> None:
    if not is_right:
        raise RequestError(f"{parameter}: {message}", parameter)
