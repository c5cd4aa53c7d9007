"""What a process that decodes videos is told, and what it answers besides pixels."""

import struct
from typing import Final

import numpy as np

from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes
from jaxllm.serving.media.video.frames import VideoFrames

JOB: Final = struct.Struct("!QQQIIIdBBB")
"""Bytes of the file; most pixels of a frame and of all; most seconds; CPU seconds; frames to use, and how many of a
second, 0 for all; the background's colour."""
_HEAD: Final = struct.Struct("!IIdd")
"""Frames that follow, frames in all, frames per second and seconds."""


def packed(video: VideoFrames) -> bytes:
    """All of a video but its pixels."""
    assert video.fps is not None
    assert video.duration is not None
    head = _HEAD.pack(len(video.indices), video.total, video.fps, video.duration)
    return head + np.array(video.indices, ">u4").tobytes()


def size_of(count: int, width: int, height: int) -> int:
    """Bytes of an answer with so many frames."""
    return _HEAD.size + count * (4 + CHANNELS * width * height)


def unpacked(answer: Bytes, width: int, height: int) -> VideoFrames:
    """The video of an answer uint8 [size]. Raises `ValueError` for what no process that works would say."""
    count, total, fps, duration = _HEAD.unpack_from(answer.data)
    if size_of(count, width, height) != answer.nbytes or not (0 < fps < 1e6 and 0 < duration < 1e6):
        raise ValueError("no answer of a video")
    begin = _HEAD.size + 4 * count
    indices = tuple(answer[_HEAD.size : begin].view(">u4").tolist())
    if not count or total < 1 or max(indices) >= total:
        raise ValueError("no answer of a video")
    frames = answer[begin:].reshape(count, height, width, CHANNELS)
    return VideoFrames(frames, indices, total, fps, duration)
