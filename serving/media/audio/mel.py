"""`MelFeatures`: log-mel spectrograms as Whisper takes them, equal to transformers' `WhisperFeatureExtractor`.

Frames are windowed by a periodic Hann window, after reflecting half a frame at both ends. Power spectra become mel
bands, on the scale and with the norm of Slaney; these become logarithms, at most 80 dB below the loudest, and numbers
of about -1 to 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxllm.errors import ConfigError
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.media.checkpoint import IMAGES as _FILE
from jaxllm.serving.media.checkpoint import PROCESSOR, read_object
from jaxllm.serving.media.image_processors.settings import Settings

FloatArray = NDArray[np.float64]

_EXTRACTOR: Final = "WhisperFeatureExtractor"
_WITHOUT_EFFECT: Final = (
    # Computed from the others, by transformers as well; older checkpoints list the filters.
    "n_samples", "nb_max_frames", "mel_filters",
    # Every window is filled up with silence at its right.
    "padding_side", "padding", "return_attention_mask",
)  # fmt: skip
_FLOOR: Final = 1e-10
_RANGE: Final = 8.0
"""Of the decimal logarithm of power."""
_FREQUENCY: Final = 8000.0
"""The highest, in Hz."""
_LEAST: Final = 2
"""Frames of the shortest sound: half of one is reflected at each end."""


@dataclass(frozen=True)
class MelFeatures:
    """Makes features of windows of sound. Immutable, and shared by threads."""

    num_bins: int = 80
    hop: int = 160
    num_fft: int = 400
    seconds: int = 30
    """Of a window."""
    _filters: FloatArray = field(init=False, repr=False, compare=False)
    _window: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_filters", mel_filters(self.num_fft, self.num_bins))
        angles = 2 * np.pi * np.arange(self.num_fft) / self.num_fft
        object.__setattr__(self, "_window", 0.5 - 0.5 * np.cos(angles))

    @classmethod
    def of(cls, fields: Mapping[str, Any], source: str) -> Self:
        """From preprocessor_config.json. Raises `ConfigError` for what is not supported."""
        settings = Settings({"feature_extractor_type": _EXTRACTOR, **fields}, source)
        if fields.get("feature_extractor_type", _EXTRACTOR) != _EXTRACTOR:
            raise settings.fail(f"feature_extractor_type: only {_EXTRACTOR} is supported")
        settings.ignore(*_WITHOUT_EFFECT)
        found = cls(
            num_bins=settings.integer("feature_size", 80, 1, 512),
            hop=settings.integer("hop_length", 160, 1, RATE),
            num_fft=settings.integer("n_fft", 400, 2, RATE),
            seconds=settings.integer("chunk_length", 30, 1, 600),
        )
        settings.integer("sampling_rate", RATE, RATE, RATE)
        settings.number("padding_value", 0.0, 0.0, 0.0)
        settings.number("dither", 0.0, 0.0, 0.0)
        settings.check_all_read(("feature_size", "hop_length", "n_fft", "chunk_length", "sampling_rate"))
        return found

    @classmethod
    def read(cls, folder: Path) -> Self:
        """From the files of a model. Raises `ConfigError`, also where they do not say how sound is processed."""
        nested = read_object(folder / PROCESSOR).get("feature_extractor")
        source, fields = (PROCESSOR, nested) if isinstance(nested, Mapping) else (_FILE, read_object(folder / _FILE))
        if not fields:
            raise ConfigError(f"{folder} has no {_FILE}: it does not say how sound is to be processed")
        return cls.of({key: value for key, value in fields.items() if key != "processor_class"}, source)

    @property
    def num_samples(self) -> int:
        """Of a window."""
        return self.seconds * RATE

    @property
    def num_frames(self) -> int:
        """Of a window."""
        return self.num_samples // self.hop

    def __call__(self, samples: Samples) -> Samples:
        """Features float32 [num_bins, num_frames] of at most a window, float32 [samples]; silence follows it."""
        assert len(samples) <= self.num_samples
        return self.together(samples)[0]

    def together(self, samples: Samples) -> Samples:
        """Features float32 [windows, num_bins, num_frames] of as many windows as hold the samples, float32 [samples].

        They are computed as one sound, with silence after it: the loudest of all is what levels refer to.
        """
        return self._windows(samples, max(1, -(-len(samples) // self.num_samples)) * self.num_frames)

    def ending(self, samples: Samples) -> tuple[Samples, int]:
        """The same of a sound that has no silence after it, and its number of frames: of others there are zeros."""
        count = max(_LEAST, -(-len(samples) // self.hop))
        return self._windows(samples, count), count

    def _windows(self, samples: Samples, count: int) -> Samples:
        """Windows of the first `count` frames, with zeros after these."""
        half, windows = self.num_fft // 2, -(-count // self.num_frames)
        sound = np.zeros(count * self.hop, np.float32)
        sound[: len(samples)] = samples
        sound = np.pad(sound, half, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(sound, self.num_fft)[:: self.hop][:count]
        found = np.full((windows, self.num_bins, self.num_frames), np.log10(_FLOOR))
        for number in range(windows):
            # One window at a time: the frames of ten minutes would take 200 MB.
            spectra = np.fft.rfft(frames[number * self.num_frames :][: self.num_frames] * self._window)
            power = spectra.real**2 + spectra.imag**2
            found[number, :, : len(power)] = np.log10(np.maximum(power @ self._filters, _FLOOR)).T
        made = ((np.maximum(found, found.max() - _RANGE) + 4.0) / 4.0).astype(np.float32)
        made[-1, :, count - (windows - 1) * self.num_frames :] = 0.0
        return made


def mel_filters(num_fft: int, num_bins: int) -> FloatArray:
    """Triangles over frequencies, float64 [num_fft // 2 + 1, num_bins]: equally wide in mel, and of equal area."""
    frequencies = np.linspace(0.0, RATE / 2, num_fft // 2 + 1)
    corners = _to_hertz(np.linspace(0.0, _to_mel(_FREQUENCY), num_bins + 2))
    rising = (frequencies[:, None] - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - frequencies[:, None]) / np.diff(corners)[1:]
    triangles: FloatArray = np.maximum(0.0, np.minimum(rising, falling))
    return triangles * (2.0 / (corners[2:] - corners[:-2]))


_LINEAR: Final = 3.0 / 200.0
"""Slaney's mel per Hz below 1 kHz, which is 15 mel; above, 27 mel are a factor of 6.4 (Auditory Toolbox, 1998)."""


def _to_mel(hertz: float) -> float:
    return _LINEAR * hertz if hertz < 1000 else 15.0 + np.log(hertz / 1000) * 27 / np.log(6.4)


def _to_hertz(mel: FloatArray) -> FloatArray:
    return np.where(mel < 15, mel / _LINEAR, 1000 * np.exp(np.maximum(mel - 15, 0) * np.log(6.4) / 27))
