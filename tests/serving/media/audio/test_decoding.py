"""Sound files, decoded by functions and by processes that may die."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import resample_poly

from jaxllm.errors import QueueFullError
from jaxllm.serving.media.audio import decoding, process
from jaxllm.serving.media.audio.decoding import SoundDecoder
from jaxllm.serving.media.audio.files import decode
from jaxllm.serving.media.audio.resample import RATE, Resampler
from jaxllm.serving.media.errors import MediaDecodeError, MediaError, MediaTooLargeError
from tests.serving.media.audio import hostile
from tests.serving.media.audio.sounds import file_of, tone, wav_that_claims

MOST = 10
ENOUGH = 400 << 20
"""Bytes that a process may take for a file of 25 MB, its samples and the decoder itself."""


@pytest.fixture(scope="module")
def decoder() -> Iterator[SoundDecoder]:
    found = SoundDecoder(2, MOST)
    yield found
    found.close()


@pytest.mark.parametrize("rate", [4000, 8000, 11025, 16001, 22050, 24000, 44100, 48000, 96000, 192000])
def test_a_tone_keeps_its_pitch_and_its_loudness(rate: int) -> None:
    sound = tone(1.3, rate)
    resampler = Resampler(rate)
    blocks = [resampler.push(block) for block in np.array_split(sound, 7)]
    found = np.concatenate([*blocks, resampler.end()])
    assert abs(len(found) - 1.3 * RATE) < 1
    inner = slice(RATE // 10, -RATE // 10)
    np.testing.assert_allclose(found[inner], tone(1.3)[: len(found)][inner], atol=2e-5)


def test_what_models_cannot_hear_does_not_come_back_as_something_else() -> None:
    resampler = Resampler(48000)
    found = np.concatenate([resampler.push(tone(1.0, 48000, pitch=9500.0)), resampler.end()])
    assert np.abs(found[1000:-1000]).max() < 1e-5


@pytest.mark.parametrize(("rate", "up", "down"), [(8000, 2, 1), (44100, 160, 441), (48000, 1, 3)])
def test_noise_is_resampled_as_scipy_does(rate: int, up: int, down: int) -> None:
    """Another filter, so only what both let pass is compared."""
    noise = np.random.default_rng(0).normal(size=rate).astype(np.float32)
    smooth = np.convolve(noise, np.hanning(max(9, 12 * rate // RATE)) / 4, "same").astype(np.float32)
    resampler = Resampler(rate)
    found = np.concatenate([resampler.push(smooth), resampler.end()])
    wanted = resample_poly(smooth.astype(float), up, down, window=("kaiser", 12.0))
    assert np.abs(found - wanted)[500:-500].max() < 0.02 * np.abs(wanted).max()


def test_blocks_make_no_difference() -> None:
    sound = np.random.default_rng(1).normal(size=44100).astype(np.float32)
    whole, parts = Resampler(44100), Resampler(44100)
    wanted = np.concatenate([whole.push(sound), whole.end()])
    found = [parts.push(block) for block in np.split(sound, [1, 2, 300, 20000, 20000])]
    np.testing.assert_allclose(np.concatenate([*found, parts.end()]), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("form", "subtype", "error"),
    [
        ("WAV", "PCM_16", 1e-4),
        ("WAV", "PCM_U8", 1e-2),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "FLOAT", 1e-6),
        ("AIFF", "PCM_16", 1e-4),
        ("FLAC", None, 1e-4),
        ("OGG", "VORBIS", 0.05),
        ("MP3", None, 0.05),
    ],
)
async def test_formats(decoder: SoundDecoder, form: str, subtype: str | None, error: float) -> None:
    sound = tone(1.0)
    found = await decoder.decode(file_of(sound, form=form, subtype=subtype))
    np.testing.assert_allclose(found[2000:14000], sound[2000:14000], atol=error)
    if error < 0.05:
        assert found.shape == sound.shape


async def test_channels_become_their_mean(decoder: SoundDecoder) -> None:
    left, right = tone(0.5, 48000), tone(0.5, 48000, pitch=880.0)
    found = await decoder.decode(file_of(np.stack([left, right], axis=1), 48000, subtype="FLOAT"))
    wanted = (tone(0.5) + tone(0.5, pitch=880.0)) / 2
    np.testing.assert_allclose(found[500:-500], wanted[500:-500], atol=1e-4)


def broken_files() -> dict[str, tuple[bytes, type[MediaError], str]]:
    """Files that strangers send, with what is said of them."""
    wav, flac = file_of(tone(1.0)), file_of(tone(1.0), form="FLAC")
    nan = np.full(100, np.nan, np.float32)
    return {
        "nothing": (b"", MediaDecodeError, "expected WAV, FLAC"),
        "text": (b"hello there, this is no sound", MediaDecodeError, "expected WAV, FLAC"),
        "mp4": (b"\0\0\0\x18ftypM4A \0\0\0\0", MediaDecodeError, "expected WAV, FLAC"),
        "magic": (b"fLaC", MediaDecodeError, "cannot be read"),
        "riff": (b"RIFF\0\0\0\0WAVE", MediaDecodeError, "cannot be read"),
        "id3": (b"ID3" + bytes(100), MediaDecodeError, "sound|samples"),
        "truncated wav": (wav[:-1000], MediaDecodeError, "truncated"),
        "truncated flac": (flac[: len(flac) // 2], MediaDecodeError, "cannot be decoded|truncated"),
        "truncated aiff": (file_of(tone(1.0), form="AIFF")[:-1000], MediaDecodeError, "truncated"),
        "chunks": (hostile.broken_files()["thousands of chunks"], MediaDecodeError, "more than 1000 chunks"),
        "hours": (wav_that_claims(7200), MediaDecodeError, "truncated"),
        "long": (file_of(tone(MOST + 1.0)), MediaTooLargeError, r"at most 10 are allowed \(--max-audio-seconds\)"),
        "no samples": (file_of(np.zeros(0, np.float32)), MediaDecodeError, "no samples"),
        "nan": (file_of(nan, subtype="FLOAT"), MediaDecodeError, "no numbers"),
        "channels": (file_of(np.zeros((100, 9), np.float32)), MediaDecodeError, "9 channels"),
        "rate": (file_of(tone(0.1), 2000), MediaDecodeError, "2000 samples per second"),
    }


@pytest.mark.parametrize("name", broken_files())
async def test_broken_files_are_errors_of_their_own(decoder: SoundDecoder, name: str) -> None:
    data, kind, words = broken_files()[name]
    with pytest.raises(kind, match=words) as told:
        await decoder.decode(data)
    assert told.value.parameter == "file"
    assert len(str(told.value)) < 300
    assert len(await decoder.decode(file_of(tone(0.1)))) == 1600


async def test_strangers_get_errors_and_no_memory(decoder: SoundDecoder) -> None:
    await decoder.decode(hostile.wav())
    pids = decoder.pids()
    for name, data in {**hostile.broken_files(), **hostile.bombs()}.items():
        with pytest.raises(MediaError) as told:
            await decoder.decode(data)
        assert len(str(told.value)) < 300, name
        assert " at 0x" not in str(told.value), name
    # None of them ended a process, and none took more memory for a while.
    assert decoder.pids() == pids
    assert max(map(most_memory, pids)) < ENOUGH


def most_memory(pid: int) -> int:
    """The most bytes that a process has had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_a_wav_from_a_pipe_has_the_sound_that_is_there() -> None:
    sound = (1000 * tone(0.5)).astype(np.int16).tobytes()
    assert len(decode(wav_that_claims(0xFFFFFFFF / RATE / 2, data=sound), MOST)) == RATE // 2


def test_bytes_that_are_changed_are_never_worse_than_an_error() -> None:
    random = np.random.default_rng(5)
    for form in ("WAV", "FLAC", "OGG", "MP3", "AIFF"):
        good = file_of(tone(0.2), form=form)
        for _ in range(30):
            bad = bytearray(good)
            for place in random.integers(0, min(len(bad), 200), 3):
                bad[place] = random.integers(256)
            try:
                found = decode(bytes(bad), MOST)
            except MediaError:
                continue
            assert len(found) <= MOST * RATE + 1


async def test_a_process_that_dies_costs_one_file_at_most(decoder: SoundDecoder) -> None:
    data = file_of(tone(0.1))
    await decoder.decode(data)
    for pid in decoder.pids():
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0.2)
    assert len(await decoder.decode(data)) == 1600


async def test_too_much_work_is_an_error() -> None:
    decoder = SoundDecoder(1, 100_000, cpu_seconds=1)
    try:
        sound = file_of(np.zeros(3_000 * 4001, np.float32), 4001, form="FLAC")
        with pytest.raises(MediaDecodeError, match="too much time or memory"):
            await decoder.decode(sound)
    finally:
        decoder.close()
    with pytest.raises(QueueFullError, match="shutting down"):
        await decoder.decode(b"")


def test_both_ends_agree_about_jobs() -> None:
    assert decoding.JOB.format == process.JOB.format
