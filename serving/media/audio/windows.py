"""`SoundWindows`: sound to windows of features, and these as the engine takes them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxllm.config.engine_info import SoundInfo
from jaxllm.errors import RequestError
from jaxllm.requests.media import FIELD, MediaItem
from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.media.audio.speech_mel import SpeechMel


@dataclass(frozen=True, slots=True)
class SoundWindow:
    """Log-mel features float32 [bins, frames]; the first `num_frames` are sound."""

    features: npt.NDArray[np.float32]
    num_frames: int


@dataclass(frozen=True, slots=True)
class PreparedSound:
    """A sound as the engine takes it: its windows, one after the other."""

    items: tuple[MediaItem, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all windows."""
        return sum(item.num_rows for item in self.items)

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        return sum(item.features.nbytes for item in self.items if item.features is not None)


@dataclass(frozen=True)
class SoundWindows:
    """How a model takes sound. Immutable, and shared by threads."""

    features: MelFeatures | SpeechMel
    info: SoundInfo

    def of(self, samples: Samples) -> PreparedSound:
        """A sound, float32 [samples] of 16 kHz, all of it.

        Raises `RequestError` for what is longer than the model takes, and for what is too short for a row.
        """
        if not len(samples):
            raise RequestError("audio: there are no samples", FIELD)
        if isinstance(self.features, SpeechMel):
            led = (SoundWindow(each, frames) for each, frames in self.features.windows(samples))
            return PreparedSound(tuple(_item(each, self.info) for each in led))
        size, hop = self.features.num_samples, self.features.hop
        if self.info.windows == "one" and len(samples) > size:
            seconds, most = len(samples) / RATE, self.features.seconds
            raise RequestError(f"audio: {seconds:.1f} s; this model hears one window, of at most {most} s", FIELD)
        if self.info.windows == "together":
            whole = [SoundWindow(each, each.shape[1]) for each in self.features.together(samples)]
            return PreparedSound(tuple(_item(each, self.info) for each in whole))
        if self.info.windows == "cut":
            made, count = self.features.ending(samples)
            left = [min(made.shape[2], count - number * made.shape[2]) for number in range(len(made))]
            cut = [SoundWindow(each, frames) for each, frames in zip(made, left, strict=True)]
            return PreparedSound(tuple(_item(each, self.info) for each in cut))
        parts = [samples[first : first + size] for first in range(0, len(samples), size)]
        found = tuple(_item(SoundWindow(self.features(each), -(-len(each) // hop)), self.info) for each in parts)
        # The rest of a long sound may be less than a row, which transformers leaves out as well.
        found = tuple(item for item in found if item.num_rows)
        if not found:
            raise RequestError(f"audio: {len(samples) / RATE:.3f} s are too short to be heard", FIELD)
        return PreparedSound(found)


def prepared_window(window: SoundWindow, info: SoundInfo) -> PreparedSound:
    """A window of features. Raises `RequestError` where only a part of it is sound, but all of it has rows."""
    size = window.features.shape[1]
    if info.windows == "together" and window.num_frames != size:
        raise RequestError(f"audio: all {size} frames of a window have rows, not {window.num_frames}", FIELD)
    return PreparedSound((_item(window, info),))


def _item(window: SoundWindow, info: SoundInfo) -> MediaItem:
    # With cross attention, a window is one thing.
    rows = 1 if info.token_id is None else info.rows_of(window.num_frames)
    return MediaItem.of_sound(window.features, window.num_frames, rows)
