"""Where long sound may be cut: in pauses, so that no word is lost, and its parts can be heard at the same time."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxllm.serving.media.audio.resample import RATE, Samples

_FRAME: Final = RATE // 50
"""Samples over which loudness is measured: 20 ms."""
_SHORTEST_PAUSE: Final = 15
"""Frames that must be quiet."""
_BELOW_SPEECH: Final = 30.0
"""Decibels below the loud parts at which sound is quiet."""
_SILENCE: Final = -70.0
"""Decibels of full scale, below which it is so in any case."""


class Stretch(NamedTuple):
    """A part of sound, from the sample `start` up to `stop`."""

    start: int
    stop: int


def stretches(samples: Samples, window: int) -> list[Stretch]:
    """Cut sound, float32 [samples], in pauses into parts of at most `window` samples, as far as there are pauses.

    A part without a pause is longer. Everything belongs to one part.
    """
    pauses = _pauses(samples)
    found, start = [], 0
    while len(samples) - start > window:
        stop = _cut(pauses, start, window)
        if stop is None:
            break
        found.append(Stretch(start, stop))
        start = stop
    return [*found, Stretch(start, len(samples))]


def quietest(samples: Samples, earliest: int) -> int:
    """A place to cut where there is no pause: amid the quietest 100 ms after `earliest`, as a sample."""
    power = _power(samples[earliest:])
    if len(power) < 5:
        return len(samples)
    smooth = np.convolve(power, np.ones(5), "valid")
    return earliest + (int(smooth.argmin()) + 2) * _FRAME + _FRAME // 2


def _power(samples: Samples) -> NDArray[np.float64]:
    frames = len(samples) // _FRAME
    parts = samples[: frames * _FRAME].reshape(frames, _FRAME)
    return np.einsum("ij,ij->i", parts, parts, dtype=np.float64) / _FRAME


def _pauses(samples: Samples) -> list[Stretch]:
    """Quiet parts."""
    decibels = 10 * np.log10(np.maximum(_power(samples), 1e-12))
    if not len(decibels):
        return []
    quiet = decibels < max(_SILENCE, float(np.percentile(decibels, 95)) - _BELOW_SPEECH)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    return [Stretch(int(a) * _FRAME, int(b) * _FRAME) for a, b in runs if b - a >= _SHORTEST_PAUSE]


def _cut(pauses: Sequence[Stretch], start: int, window: int) -> int | None:
    """The middle of the best pause: the longest in the second half of the window, else before, else the next."""
    middles = {(pause.start + pause.stop) // 2: pause.stop - pause.start for pause in pauses}
    for low, high in ((start + window // 2, start + window), (start + window // 8, start + window // 2)):
        near = [middle for middle in middles if low < middle <= high]
        if near:
            return max(near, key=lambda middle: (middles[middle], middle))
    return min((middle for middle in middles if middle > start + window), default=None)
