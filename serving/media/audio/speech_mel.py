"""`SpeechMel`: log-mel spectra as Phi-4 multimodal takes them, equal to transformers' `Phi4MultimodalFeatureExtractor`.

Each frame is made by itself: less a part of the sample before, in numbers of 16 bits, windowed by Hamming's window.
Power spectra become bands on HTK's mel scale, and these logarithms of at least 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxllm.errors import RequestError
from jaxllm.requests.media import FIELD
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.media.image_processors.settings import Settings

NAMES: Final = ("Phi4MultimodalFeatureExtractor", "Phi4MMAudioFeatureExtractor")
"""In transformers' format, and in the authors' own."""
NOTHING: Final = -1.0
"""What frames before a sound have, as no logarithm here has."""
_FIELDS: Final = (
    "feature_size", "sampling_rate", "hop_length", "n_fft", "win_length", "preemphasis", "mel_min_frequency",
    "mel_max_frequency", "audio_compression_rate", "audio_downsample_rate", "audio_feat_stride", "padding_value",
)  # fmt: skip
"""Fields that change features. In older checkpoints those of images are in the same file."""
_AT_A_TIME: Final = 4000
"""Frames: those of ten minutes would take 500 MB."""
_LOUDEST: Final = np.float32(32768)


@dataclass(frozen=True)
class SpeechMel:
    """Makes features of sound, and windows of these. Immutable, and shared by threads."""

    window_frames: int
    """Frames of a window."""
    context: int
    """Frames before a window that come with it: those are one position."""
    num_bins: int = 80
    hop: int = 160
    num_fft: int = 512
    length: int = 400
    """Samples of a frame."""
    preemphasis: float = 0.97
    low: float = 0.0
    high: float = 7690.0
    _filters: NDArray[np.float32] = field(init=False, repr=False, compare=False)
    _window: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        filters = _filters_of(self.num_fft, self.num_bins, self.low, self.high)
        object.__setattr__(self, "_filters", filters.astype(np.float32))
        object.__setattr__(self, "_window", np.hamming(self.length))

    @classmethod
    def of(cls, fields: Mapping[str, Any], source: str, window_frames: int, context: int) -> Self:
        """From a feature extractor's fields. Raises `ConfigError` for what is not supported."""
        settings = Settings({name: fields[name] for name in _FIELDS if name in fields}, source)
        fft = settings.integer("n_fft", 512, 2, RATE)
        found = cls(
            window_frames,
            context,
            num_bins=settings.integer("feature_size", 80, 1, 512),
            hop=settings.integer("hop_length", 160, 1, RATE),
            num_fft=fft,
            length=settings.integer("win_length", min(400, fft), 2, fft),
            preemphasis=settings.number("preemphasis", 0.97, 0.0, 1.0),
            low=settings.number("mel_min_frequency", 0.0, 0.0, RATE / 2),
            high=settings.number("mel_max_frequency", 7690.0, 1.0, RATE / 2),
        )
        settings.integer("sampling_rate", RATE, RATE, RATE)
        settings.integer("audio_compression_rate", context, context, context)
        for name in ("audio_downsample_rate", "audio_feat_stride"):
            settings.integer(name, 1, 1, 1)
        settings.ignore("padding_value")
        settings.check_all_read(_FIELDS)
        return found

    @property
    def num_frames(self) -> int:
        """Of a window, and before it."""
        return self.context + self.window_frames

    def windows(self, samples: Samples) -> Iterator[tuple[Samples, int]]:
        """Features float32 [num_bins, num_frames] of each window of samples, float32 [samples], and its frames.

        Samples at the end that do not fill a frame are left out. Raises `RequestError` where there is no frame.
        """
        if len(samples) < self.length:
            raise RequestError(f"audio: {len(samples) / RATE:.3f} s are too short to be heard", FIELD)
        features = self(samples)
        features = np.pad(features, ((0, 0), (self.context, 0)), constant_values=NOTHING)
        total = features.shape[1] - self.context
        for first in range(0, total, self.window_frames):
            count = min(self.window_frames, total - first)
            window = np.zeros((self.num_bins, self.num_frames), np.float32)
            window[:, : self.context + count] = features[:, first : first + self.context + count]
            yield window, count

    def __call__(self, samples: Samples) -> Samples:
        """Features float32 [num_bins, frames] of samples float32 [samples], at least `length` of them."""
        frames = np.lib.stride_tricks.sliding_window_view(samples, self.length)[:: self.hop]
        parts = [self._of_frames(frames[first : first + _AT_A_TIME]) for first in range(0, len(frames), _AT_A_TIME)]
        return np.concatenate(parts, axis=1)

    def _of_frames(self, frames: Samples) -> Samples:
        # The first sample of a frame has none before it: it is taken itself.
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        numbers = (frames - np.float32(self.preemphasis) * before) * _LOUDEST
        spectra = np.fft.rfft(self._window * numbers, self.num_fft).astype(np.complex64)
        power = np.abs(spectra) ** 2
        features: Samples = np.log(np.maximum(power @ self._filters, np.float32(1.0)))
        return np.ascontiguousarray(features.T)


def _filters_of(num_fft: int, num_bins: int, low: float, high: float) -> NDArray[np.float64]:
    """Triangles over mel, float64 [num_fft // 2 + 1, num_bins], all as high."""
    places = _to_mel(np.arange(num_fft // 2 + 1) * (RATE / num_fft))[:, None]
    corners = np.linspace(_to_mel(np.float64(low)), _to_mel(np.float64(high)), num_bins + 2)
    rising = (places - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - places) / np.diff(corners)[1:]
    triangles: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return triangles


def _to_mel(hertz: Any) -> Any:
    """Mel as Kaldi has it."""
    return 1127.0 * np.log(1.0 + hertz / 700.0)
