"""Sound of prompts: windows of log-mel features, and the tokens in whose place their rows stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.config.engine_info import SoundInfo
from jaxllm.errors import RequestError, quoted
from jaxllm.requests.media import FIELD, PromptMedia
from jaxllm.serving.media.audio.windows import PreparedSound, SoundWindow


@dataclass(frozen=True, slots=True)
class SoundSamples:
    """Samples float32 [samples] of one channel, so many per second."""

    samples: npt.NDArray[np.float32]
    rate: int


GivenSound = SoundWindow | SoundSamples | PreparedSound
"""A sound as prompts bring it."""


def window_of(given: Any) -> GivenSound:
    """A sound as people give it: features, or these and a number of frames, or samples and their rate.

    Raises `RequestError`.
    """
    if isinstance(given, PreparedSound):
        return given
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
    sounds: Sequence[PreparedSound], token_ids: npt.NDArray[np.integer[Any]], info: SoundInfo, block_size: int
) -> tuple[PromptMedia, npt.NDArray[np.int32]]:
    """The sounds of a prompt as the engine takes them, and its tokens int32 with one for each row.

    There may be one for each sound, or all. Raises `RequestError` where there are others.
    """
    tokens, items = token_ids.astype(np.int32), tuple(item for sound in sounds for item in sound.items)
    if info.token_id is None:
        if len(items) != 1:
            raise RequestError(f"{FIELD}: this model takes one window of sound per prompt, got {len(items)}", FIELD)
        return PromptMedia.of_sound(items[0]), tokens
    counts = [sound.num_rows for sound in sounds]
    is_sound = tokens == info.token_id
    if is_sound.sum() == len(sounds) != sum(counts):
        repeats = np.ones(len(tokens), np.int64)
        repeats[is_sound] = counts
        tokens = np.repeat(tokens, repeats)
    return PromptMedia.of(items, tokens, info.token_id, block_size), tokens
