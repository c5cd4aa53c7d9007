"""Bytes of a sound file to one channel of 16 kHz, with libsndfile; `SoundDecoder` has it done by another process."""

import io
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import soundfile

from jaxllm.serving.media.audio.resample import HIGHEST_RATE, LOWEST_RATE, Resampler, Samples
from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError

NAMES: Final = "WAV, FLAC, MP3, Ogg (Vorbis or Opus) or AIFF"
FIELD: Final = "file"
MOST_CHANNELS: Final = 8
_BLOCK: Final = 1 << 17
"""Frames that are decoded at once."""
_UNKNOWN: Final = 1 << 62
"""libsndfile says at least so many frames where a header does not tell."""
_STREAMED: Final = 0x7FFFF000
"""Programs that write WAV into a pipe give at least this size, as they cannot know it, or 0."""
_MPEG_LAYERS: Final = (0xE2, 0xE4, 0xE6)
"""Of a frame's second byte: MPEG audio, layer III to I."""
_CHUNKED: Final = {"WAV": ("<4sI", b"data"), "AIFF": (">4sI", b"SSND")}
"""The head of a chunk, and the name of the one that has the sound."""
_MOST_CHUNKS: Final = 1000
"""Before the sound. libsndfile takes seconds for a file of nothing else."""


def open_sound(data: bytes, most_seconds: int) -> soundfile.SoundFile:
    """Read the header of a file: the format is what its first bytes say, whatever it is called.

    Raises `MediaDecodeError` for other formats and broken headers, and `MediaTooLargeError` for too many seconds.
    """
    form = _format(data)
    if form is None:
        raise MediaDecodeError(f"the data is no sound that can be decoded: expected {NAMES}", FIELD)
    if form in _CHUNKED:
        _check_chunks(data, *_CHUNKED[form])
    try:
        found = soundfile.SoundFile(io.BytesIO(data))
    # Of a broken file, libsndfile's wrapper makes whatever it likes.
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise MediaDecodeError(f"the sound cannot be read: {_words(error)}", FIELD) from None
    if not LOWEST_RATE <= found.samplerate <= HIGHEST_RATE:
        message = f"the sound has {found.samplerate} samples per second: expected {LOWEST_RATE} to {HIGHEST_RATE}"
        raise MediaDecodeError(message, FIELD)
    if not 1 <= found.channels <= MOST_CHANNELS:
        raise MediaDecodeError(f"the sound has {found.channels} channels: expected 1 to {MOST_CHANNELS}", FIELD)
    if found.frames < _UNKNOWN:
        _check_seconds(found.frames, found.samplerate, most_seconds)
    return found


def decode(data: bytes, most_seconds: int) -> Samples:
    """Decode a file: float32 [samples], the mean of its channels at 16 kHz.

    Raises `MediaDecodeError`, also for a file that ends early or has no sound in it, and `MediaTooLargeError`.
    """
    with open_sound(data, most_seconds) as file:
        resampler = Resampler(file.samplerate)
        parts, frames = [], 0
        for block in _blocks(file):
            frames += len(block)
            # Some formats find out only now how long they are.
            _check_seconds(frames, file.samplerate, most_seconds)
            parts.append(resampler.push(block))
        if _format(data) in ("WAV", "FLAC", "AIFF") and frames < file.frames < _UNKNOWN:
            message = f"the sound is truncated: its header tells of {file.frames} samples, and {frames} are there"
            raise MediaDecodeError(message, FIELD)
        if not frames:
            raise MediaDecodeError("the file has no samples", FIELD)
    return np.concatenate([*parts, resampler.end()])


def _blocks(file: soundfile.SoundFile) -> Iterator[Samples]:
    """The sound in blocks, float32 [at most _BLOCK]. Raises `MediaDecodeError`."""
    while True:
        try:
            block = file.read(_BLOCK, dtype="float32", always_2d=True)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (as above)
            raise MediaDecodeError(f"the sound cannot be decoded: {_words(error)}", FIELD) from None
        if not len(block):
            return
        found: Samples = block.mean(axis=1)
        if not np.isfinite(found).all():
            raise MediaDecodeError("the sound has samples that are infinite or no numbers", FIELD)
        yield found


def _format(data: bytes) -> str | None:
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "WAV"
    if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return "AIFF"
    if data[:4] in (b"fLaC", b"OggS"):
        return "FLAC" if data[:1] == b"f" else "Ogg"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 in _MPEG_LAYERS
    return "MP3" if data[:3] == b"ID3" or is_frame else None


def _check_chunks(data: bytes, head: str, sound: bytes) -> None:
    """Raise `MediaDecodeError` where there is less sound than a header says: libsndfile takes what is there."""
    place = 12
    for _ in range(_MOST_CHUNKS):
        if place + 8 > len(data):
            return
        name, size = struct.unpack_from(head, data, place)
        place += 8
        if name == sound:
            if len(data) - place < size < _STREAMED:
                message = f"its header tells of {size} bytes, and {len(data) - place} are there"
                raise MediaDecodeError(f"the sound is truncated: {message}", FIELD)
            return
        place += size + size % 2
    raise MediaDecodeError(f"the sound cannot be read: more than {_MOST_CHUNKS} chunks come before it", FIELD)


def _check_seconds(frames: int, rate: int, most_seconds: int) -> None:
    if frames > most_seconds * rate:
        message = f"the sound has {frames / rate:.1f} s or more; at most {most_seconds} are allowed"
        raise MediaTooLargeError(f"{message} (--max-audio-seconds)", FIELD)


def _words(error: Exception) -> str:
    # The wrapper's own text has the address of the buffer.
    said = error.error_string if isinstance(error, soundfile.LibsndfileError) else str(error)
    return " ".join(said.split())[:200] or type(error).__name__
