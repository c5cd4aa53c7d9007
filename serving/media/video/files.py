"""Frames of MP4, WebM and AVI, with PyAV.

FFmpeg reads far more. Demuxers of playlists open other files and URLs, and old decoders have few users: of both, only
those are used that videos of today need.
"""

import io
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from jaxllm.serving.media.errors import MediaDecodeError, MediaError
from jaxllm.serving.media.image_processors.base import Bytes
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.sampling import FrameSampling

try:
    import av
except ImportError:
    av: Any = None  # type: ignore[no-redef]

NAMES: Final = "MP4, MOV, WebM, Matroska, AVI, GIF or WebP"
CODECS: Final = frozenset(
    {
        "h264",
        "hevc",
        "av1",
        "libdav1d",
        "vp8",
        "vp9",
        "libvpx",
        "libvpx-vp9",
        "mpeg4",
        "mpeg2video",
        "mpeg1video",
        "mjpeg",
    }
)
JUMP: Final = 4.0
"""Seconds to the next frame that is used from which on it is looked for, where not all in between are decoded."""
MISSING: Final = 0.5
"""Seconds that may be missing at the end."""


def container_of(data: bytes) -> str | None:
    """FFmpeg's name of a file's format, by its first bytes; None for all others."""
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mp4"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else None


def decode_file(data: bytes, limits: VideoLimits, sampling: FrameSampling) -> VideoFrames:
    """Decode a file. Raises `MediaDecodeError` and `MediaTooLargeError`."""
    kind = container_of(data)
    if kind is None:
        raise MediaDecodeError(f"the data is no video: expected {NAMES}")
    if av is None:
        raise MediaDecodeError("only GIF and WebP are read here: for other videos, install PyAV (jaxllm[video])")
    try:
        # No protocol has this name: what a file refers to is not opened.
        with av.open(io.BytesIO(data), "r", format=kind, options={"protocol_whitelist": "none"}) as container:
            return _decode(container, limits, sampling)
    except MediaError:
        raise
    except (av.error.FFmpegError, ValueError, OverflowError, ArithmeticError, LookupError) as error:
        raise MediaDecodeError(f"the video cannot be read: {type(error).__name__}") from None


def _decode(container: Any, limits: VideoLimits, sampling: FrameSampling) -> VideoFrames:
    streams = [each for each in container.streams.video if not each.disposition & av.stream.Disposition.attached_pic]
    if not streams:
        raise MediaDecodeError("the file has no video, only sound")
    stream = streams[0]
    codec = stream.codec_context
    if codec is None or codec.name not in CODECS:
        raise MediaDecodeError(f"videos coded as {'?' if codec is None else codec.name} are not supported")
    limits.check_size(codec.width, codec.height)
    # Each thread has frames of its own.
    codec.thread_count = 1
    total, seconds = _extent(container, stream)
    limits.check_seconds(seconds)
    indices = sampling.indices(total, seconds)
    limits.check_frames(codec.width, codec.height, len(indices))
    fps = total / seconds
    frames = _picked(container, stream, [index / fps for index in indices], 1 / fps, limits)
    return VideoFrames(frames, tuple(indices), total, fps, seconds)


def _extent(container: Any, stream: Any) -> tuple[int, float]:
    """Frames and seconds, as the header says, or as packets are counted."""
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    total, seconds = int(stream.frames), 0.0
    if stream.duration is not None and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration:
        seconds = container.duration / 1e6
    if total <= 0 and seconds > 0 and rate > 0:
        total = max(1, round(seconds * rate))
    if total <= 0:
        total = sum(1 for packet in container.demux(stream) if packet.size)
        container.seek(0)
    if total <= 0:
        raise MediaDecodeError("the video has no frames")
    if seconds <= 0:
        seconds = total / (rate or 24.0)
    return total, seconds


def _picked(container: Any, stream: Any, times: list[float], spacing: float, limits: VideoLimits) -> Bytes:
    """The frames at these times in seconds, ascending: uint8 [len(times), height, width, 3]."""
    found: Bytes | None = None
    place, last = 0, 0.0
    # Frames before which was jumped; all, once a jump has led back: where there are few frames to begin at.
    jumped = -1
    begin = float(stream.start_time * stream.time_base) if stream.start_time is not None else 0.0
    source = _decoded(container, stream, limits)
    while place < len(times):
        jumps = jumped < place and times[place] - last > JUMP
        if jumps:
            jumped = place
            container.seek(int((begin + times[place]) / stream.time_base), stream=stream)
            source = _decoded(container, stream, limits)
        frame = next(source, None)
        if frame is None:
            break
        at = frame.time - begin if frame.time is not None else last + spacing
        if jumps and at <= last:
            jumped = len(times)
        last = at
        pixels = None
        while place < len(times) and at >= times[place] - spacing / 2:
            pixels = _rgb(frame) if pixels is None else pixels
            if found is None:
                found = np.empty((len(times), *pixels.shape), np.uint8)
            found[place] = _fitted(pixels, found)
            place += 1
    if found is None or (place < len(times) and times[-1] - last > max(MISSING, 2 * spacing)):
        raise MediaDecodeError("the video ends before its header says so")
    found[place:] = found[place - 1] if place else 0
    return found


def _decoded(container: Any, stream: Any, limits: VideoLimits) -> Iterator[Any]:
    for frame in container.decode(stream):
        # Streams may change their size after the header.
        limits.check_size(frame.width, frame.height)
        yield frame


def _rgb(frame: Any) -> Bytes:
    """uint8 [height, width, 3], turned as the file says."""
    pixels: Bytes = frame.to_ndarray(format="rgb24")
    turns = round((getattr(frame, "rotation", 0) or 0) / 90) % 4
    return np.rot90(pixels, turns) if turns else pixels


def _fitted(pixels: Bytes, frames: Bytes) -> Bytes:
    if pixels.shape != frames.shape[1:]:
        raise MediaDecodeError("the frames of the video differ in size")
    return pixels
