"""Files of video, decoded by functions and by processes that may die."""

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.media.errors import MediaDecodeError, MediaError, MediaTooLargeError
from jaxllm.serving.media.video import files
from jaxllm.serving.media.video.animations import decode_animation
from jaxllm.serving.media.video.decoding import VideoDecoder
from jaxllm.serving.media.video.files import decode_file
from jaxllm.serving.media.video.frames import VideoFrames, videos_of
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.message import packed, unpacked
from jaxllm.serving.media.video.sampling import FrameSampling
from tests.serving.media.video.clips import FPS, animation, clip, frames, numbers_of, tone_alone

LIMITS = VideoLimits(1 << 16, 100, 1 << 20)
ALL = FrameSampling(1000)


@pytest.fixture(scope="module")
def decoder() -> Iterator[VideoDecoder]:
    found = VideoDecoder(1, LIMITS)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("mp4", "mpeg4"),
        ("mp4", "libx264"),
        ("webm", "libvpx"),
        ("webm", "libvpx-vp9"),
        ("avi", "mpeg4"),
        ("mov", "libx264"),
    ],
)
def test_frames_are_those_with_the_numbers(kind: str, codec: str) -> None:
    data = clip(44, kind, codec)
    for sampling, count in ((ALL, 44), (FrameSampling(), 32), (FrameSampling(5), 5), (FrameSampling(32, 2.0), 8)):
        found = decode_file(data, LIMITS, sampling)
        assert (found.total, round(found.fps or 0, 6), len(found.indices)) == (44, FPS, count)
        assert numbers_of(found.frames) == list(found.indices)


@pytest.mark.parametrize("gop", [12, 100, 1000])
def test_frames_far_apart(gop: int) -> None:
    """Few are decoded of those in between, where a file has frames to begin at."""
    data = clip(300, codec="libx264", gop=gop)
    for count in (2, 5, 20):
        found = decode_file(data, LIMITS, FrameSampling(count))
        assert numbers_of(found.frames) == [number % 44 for number in found.indices], count


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animations(kind: str) -> None:
    found = decode_animation(animation(20, kind, 50), LIMITS, FrameSampling(8), (255, 255, 255))
    assert numbers_of(found.frames) == list(found.indices) == [0, 2, 5, 8, 10, 13, 16, 19]
    assert found.fps == pytest.approx(20)


NOISE = {kind: clip(20, kind, noise=True) for kind in ("mp4", "matroska", "avi")}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is no video"),
        (b"<html>" * 100, "is no video"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/a.ts\n", "is no video"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "is no video"),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(100), "cannot be read"),
        (NOISE["mp4"][: len(NOISE["mp4"]) // 2], "cannot be read"),
        (NOISE["matroska"][: len(NOISE["matroska"]) // 2], "ends before its header says so"),
        (tone_alone(), "no video, only sound"),
        (clip(4, "avi", "ffv1"), "videos coded as ffv1 are not supported"),
    ],
)
def test_what_is_no_video(data: bytes, reason: str) -> None:
    with pytest.raises(MediaDecodeError, match=reason):
        decode_file(data, LIMITS, ALL)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (VideoLimits(1000, 100, 1 << 20), "64x48 = 3072 pixels; at most 1000"),
        (VideoLimits(1 << 16, 1, 1 << 20), r"\d s or more; at most 1 s"),
        (VideoLimits(1 << 16, 100, 10_000), "20 frames of 64x48 have 61440 pixels; at most 10000"),
    ],
)
def test_what_is_too_large(limits: VideoLimits, reason: str) -> None:
    """As the header says, before anything is decoded."""

    def reserve(width: int, height: int, count: int) -> None:
        assert count == 1, "nothing is decoded yet"

    strict = replace(limits, reserve=reserve)
    with pytest.raises(MediaTooLargeError, match=reason):
        decode_file(clip(), strict, ALL)
    with pytest.raises(MediaTooLargeError, match=reason):
        decode_animation(animation(20), strict, ALL, (0, 0, 0))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    data = clip(2)
    monkeypatch.setattr(files, "av", None)
    with pytest.raises(MediaDecodeError, match=r"install PyAV \(jaxllm\[video\]\)"):
        decode_file(data, LIMITS, ALL)


def test_broken_files_hurt_nobody() -> None:
    """Bytes at random: an error, or frames."""
    drawn = np.random.default_rng(0)
    for data in NOISE.values():
        for _ in range(15):
            broken = np.frombuffer(data, np.uint8).copy()
            places = drawn.integers(0, len(broken), 20)
            broken[places] = drawn.integers(0, 256, len(places))
            with suppress(MediaError):
                decode_file(broken.tobytes(), LIMITS, FrameSampling(4))


def test_a_process(decoder: VideoDecoder) -> None:
    def decode(data: bytes) -> VideoFrames:
        return decoder.decode(data, FrameSampling(6))

    for data in (clip(), animation(20)):
        found = decode(data)
        assert numbers_of(found.frames) == list(found.indices) == [0, 3, 7, 11, 15, 19]
        assert found.total == 20
        assert found.duration == pytest.approx(2.0)
    with pytest.raises(MediaTooLargeError, match="400x300") as caught:
        decode(clip(2, height=300, width=400))
    assert caught.value.parameter == "video_url"
    (process,) = decoder.pids()
    with pytest.raises(MediaDecodeError, match="is no video"):
        decode(b"none")
    assert decoder.pids() == {process}
    os.kill(process, signal.SIGKILL)
    time.sleep(0.2)
    assert len(decode(clip()).indices) == 6


def test_too_much_time() -> None:
    """Only the file is an error."""
    decoder = VideoDecoder(1, VideoLimits(1 << 22, 1000, 1 << 26), cpu_seconds=0)
    try:
        with pytest.raises(MediaDecodeError, match="took too much time"):
            decoder.decode(clip(200, height=720, width=1280, codec="mpeg4", gop=200), FrameSampling(2))
    finally:
        decoder.close()


def test_answers_that_no_process_gives() -> None:
    video = VideoFrames(np.stack(frames(2)), (0, 5), 6, 2.0, 3.0)
    answer = np.frombuffer(packed(video) + video.frames.tobytes(), np.uint8)
    found = unpacked(answer, 64, 48)
    assert (found.indices, found.total, found.fps, found.duration) == ((0, 5), 6, 2.0, 3.0)
    wrong = answer.copy()
    wrong[0] = 9
    for bad, sides in ((answer, (48, 64, 1)), (answer[:-1], (64, 48)), (wrong, (64, 48))):
        with pytest.raises(ValueError, match=r"no answer|reshape") if len(sides) == 2 else pytest.raises(TypeError):
            unpacked(bad, *sides)


def test_videos_as_callers_give_them() -> None:
    whole = np.stack(frames(4))
    several: list[Any] = [whole, list(whole), [whole], (whole, {}), [(whole, {"fps": None})]]
    for given in several:
        (found,) = videos_of(given)
        np.testing.assert_array_equal(found.frames, whole)
        assert (found.indices, found.total, found.fps, found.sampled_fps) == ((0, 1, 2, 3), 4, None, 24.0)
    first, second = videos_of([(whole, {"fps": 10, "frames_indices": [0, 5, 10, 15], "total_num_frames": 20}), whole])
    assert (first.sampled_fps, first.total, second.total) == (2.0, 20, 4)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"speed": 1}, "unknown key 'speed'"),
        ({"fps": 0}, "expected a positive number"),
        ({"frames_indices": [0]}, "a number for each of 2 frames"),
        ({"total_num_frames": "a"}, "expected an integer"),
        ({"do_sample_frames": True}, "all frames that are given are used"),
    ],
)
def test_wrong_metadata(metadata: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        videos_of((np.stack(frames(2)), metadata))


@pytest.mark.parametrize("given", [np.zeros((2, 3, 4), np.uint8), np.zeros((2, 4, 4, 3)), [], "a.mp4"])
def test_what_is_no_video_of_a_caller(given: object) -> None:
    with pytest.raises(RequestError, match="expected a"):
        videos_of([given] if isinstance(given, list) else given)


def test_frames_to_use() -> None:
    assert FrameSampling.read(None, 768) == FrameSampling(32)
    assert FrameSampling.read(None, 16) == FrameSampling(16)
    assert FrameSampling.read({"video": {"num_frames": -1, "fps": 2}}, 768) == FrameSampling(768, 2.0)
    assert FrameSampling(32).indices(3, 1.0) == [0, 1, 2]
    assert FrameSampling(4).indices(100, 1.0) == [0, 33, 66, 99]
    assert FrameSampling(32, 0.1).indices(100, 1.0) == [0]
    several: list[Any] = [
        {"num_frames": 0},
        {"num_frames": 769},
        {"fps": "a"},
        {"fps": 0.5j},
        {"frames": 2},
        [],
        {"fps": True},
    ]
    for wrong in several:
        for error in (ConfigError, RequestError):
            with pytest.raises(error, match="media_io_kwargs"):
                FrameSampling().overridden({"video": wrong}, 768, error)
    with pytest.raises(RequestError, match="requests may have"):
        FrameSampling().overridden({"image": {}}, 768)


def test_videos_that_are_to_be_turned() -> None:
    """As telephones write it: the matrix in the header turns frames by 90 degrees clockwise."""
    data = bytearray(clip(2, corner=True))
    place = data.index(b"tkhd") + 4 + 40
    data[place : place + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    frame = decode_file(bytes(data), LIMITS, ALL).frames[0]
    assert frame.shape == (64, 48, 3)
    bright = frame.mean(axis=2) > 128
    # The corner was at the top left.
    assert bright[:16, -16:].mean() > 0.9
    assert bright[:, :16].mean() < 0.1
