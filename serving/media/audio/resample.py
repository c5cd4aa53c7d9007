"""`Resampler`: sound of any rate to 16 kHz, block by block, by a windowed sinc.

The filter is `c sinc(c t) kaiser(t)` with t in samples of the input, where `c` is a little below the lower of the two
Nyquist rates: 32 zero crossings on each side, a Kaiser window of beta 12, whose side lobes are below -115 dB. An output
sample lies at one of a few phases between input samples, and each phase has its own taps (J. O. Smith, Digital Audio
Resampling, https://ccrma.stanford.edu/~jos/resample/).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

RATE: Final = 16_000
"""Samples per second of what models hear."""
LOWEST_RATE: Final = 4_000
HIGHEST_RATE: Final = 192_000
"""Of files."""

_ZERO_CROSSINGS: Final = 32
_ROLLOFF: Final = 0.95
_BETA: Final = 12.0
_AT_ONCE: Final = 512
"""Phases whose taps are computed together."""


class Resampler:
    """Resamples one sound to `RATE`. Not for several threads."""

    def __init__(self, rate: int) -> None:
        """`rate` is the input's, in samples per second."""
        common = math.gcd(rate, RATE)
        self._up, self._down = RATE // common, rate // common
        self._table, self._bases = _taps(self._up, self._down)
        self._period = self._down * (len(self._bases) // self._up)
        # The first output is at the first input sample, in the middle of its window.
        self._held = np.zeros(self._table.shape[1] // 2 - 1, np.float32)
        self._taken = 0
        self._given = 0

    def push(self, block: Samples) -> Samples:
        """The next samples of the output, float32 [n], from more of the input, float32 [m]."""
        self._taken += len(block)
        if self._up == self._down:
            self._given += len(block)
            return block
        held = np.concatenate([self._held, block])
        taps = self._table.shape[1]
        periods = max(0, (len(held) - taps - int(self._bases[-1])) // self._period + 1)
        found = np.empty((periods, len(self._bases)), np.float32)
        if periods:
            windows = np.lib.stride_tricks.sliding_window_view(held, taps)
            for phase, base in enumerate(self._bases):
                # A row of windows is no longer than the step between two: so BLAS takes them where they are.
                found[:, phase] = windows[base :: self._period][:periods] @ self._table[phase]
        self._held = held[periods * self._period :]
        self._given += found.size
        return found.reshape(-1)

    def end(self) -> Samples:
        """The last samples, after the last block: with these, the output is as long as the input."""
        if self._up == self._down:
            return np.empty(0, np.float32)
        taken, given = self._taken, self._given
        rest = self.push(np.zeros(self._period + self._table.shape[1], np.float32))
        return rest[: -(-taken * self._up // self._down) - given]


def resampled(samples: Samples, rate: int) -> Samples:
    """All of a sound, float32 [samples], at `RATE`."""
    resampler = Resampler(rate)
    return np.concatenate([resampler.push(samples), resampler.end()])


def _taps(up: int, down: int) -> tuple[Samples, NDArray[np.int64]]:
    """The taps of each phase, float32 [phases, 2 half], and at which input sample its window begins.

    There are `up` phases, or several times as many, so that a period is at least as long as the taps.
    """
    cutoff = _ROLLOFF * min(1.0, up / down)
    half = math.ceil(_ZERO_CROSSINGS / cutoff)
    phases = np.arange(up * -(-2 * half // down), dtype=np.int64)
    bases, fractions = phases * down // up, (phases * down % up) / up
    table = np.empty((len(phases), 2 * half), np.float32)
    for first in range(0, len(phases), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        times = fractions[some, None] + half - 1 - np.arange(2 * half)
        window = np.i0(_BETA * np.sqrt(np.maximum(0.0, 1 - (times * cutoff / _ZERO_CROSSINGS) ** 2)))
        own = np.sinc(cutoff * times) * window
        # A constant stays what it is.
        table[some] = own / own.sum(axis=1, keepdims=True)
    return table, bases
