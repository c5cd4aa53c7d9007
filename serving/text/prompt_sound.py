"""Sound of prompts: windows of log-mel features, and the tokens in whose place their rows stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.config.engine_info import SoundInfo
from jaxllm.errors import RequestError, quoted
from jaxllm.requests.media import FIELD, MediaItem, PromptMedia


@dataclass(frozen=True, slots=True)
class SoundWindow:
    """Log-mel features float32 [bins, frames], of which the first `num_frames` are sound."""

    features: npt.NDArray[np.float32]
    num_frames: int


@dataclass(frozen=True, slots=True)
class SoundSamples:
    """Samples float32 [samples] of one channel, so many per second."""

    samples: npt.NDArray[np.float32]
    rate: int


def window_of(given: Any) -> SoundWindow | SoundSamples:
    """A window as people give it: features, or these and a number of frames, or samples and their rate.

    Raises `RequestError`.
    """
    features, count = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    is_one_channel = isinstance(features, np.ndarray) and features.ndim == 1 and features.dtype.kind == "f"
    if is_one_channel and isinstance(count, (int, float)) and count % 1 == 0:
        return SoundSamples(features.astype(np.float32, copy=False), int(count))
    if not isinstance(features, np.ndarray) or features.dtype != np.float32 or features.ndim != 2:
        raise RequestError(
            f"{FIELD}: 'audio' must be log-mel features, a NumPy array float32 [bins, frames], or one channel and its "
            "rate, (floats [samples], samples per second)",
            FIELD,
        )
    if count is None:
        count = features.shape[1]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= features.shape[1]:
        raise RequestError(
            f"{FIELD}: of a window of {features.shape[1]} frames from 1 to all are sound, got {quoted(count)}", FIELD
        )
    return SoundWindow(features, count)


def with_sound(
    windows: Sequence[SoundWindow], token_ids: npt.NDArray[np.integer[Any]], sound: SoundInfo, block_size: int
) -> tuple[PromptMedia, npt.NDArray[np.int32]]:
    """The windows of a prompt as the engine takes them, and its tokens int32 with one for each row.

    There may be one for each window, or all. Raises `RequestError` where there are others.
    """
    tokens = token_ids.astype(np.int32)
    if sound.token_id is None:
        items = tuple(MediaItem.of_sound(each.features, each.num_frames) for each in windows)
        if len(items) != 1:
            raise RequestError(f"{FIELD}: this model takes one window of sound per prompt, got {len(items)}", FIELD)
        return PromptMedia.of_sound(items[0]), tokens
    counts = [sound.rows_of(each.num_frames) for each in windows]
    items = tuple(
        MediaItem.of_sound(each.features, each.num_frames, count) for each, count in zip(windows, counts, strict=True)
    )
    is_sound = tokens == sound.token_id
    if is_sound.sum() == len(windows) != sum(counts):
        repeats = np.ones(len(tokens), np.int64)
        repeats[is_sound] = counts
        tokens = np.repeat(tokens, repeats)
    return PromptMedia.of(items, tokens, sound.token_id, block_size), tokens
