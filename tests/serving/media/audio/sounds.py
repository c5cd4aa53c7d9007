"""Sound files for tests."""

import io
import struct

import numpy as np
import soundfile

from jaxllm.serving.media.audio.resample import RATE, Samples


def tone(seconds: float, rate: int = RATE, pitch: float = 440.0) -> Samples:
    """A sine, float32 [samples]."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * pitch * times)).astype(np.float32)


def file_of(samples: Samples, rate: int = RATE, form: str = "WAV", subtype: str | None = None) -> bytes:
    """A file of sound, float32 [samples] or [samples, channels]."""
    made = io.BytesIO()
    soundfile.write(made, samples, rate, format=form, subtype=subtype)
    return made.getvalue()


def wav_that_claims(seconds: float, rate: int = RATE, *, data: bytes = b"\0\0" * 100) -> bytes:
    """A WAV whose header tells of more sound than there is."""
    size = int(seconds * rate) * 2
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", size, b"WAVE") + form + struct.pack("<4sI", b"data", size) + data
