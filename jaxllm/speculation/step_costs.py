"""How long a step takes, by its number of tokens, as far as steps have shown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.speculation.compiled import compiled

Floats = npt.NDArray[np.float64]

KEPT = 0.9
"""Share of what was known that one more step leaves."""

SIZES_PER_DOUBLING = 4
"""Sizes that are told apart where padding is not computed: steps of one size differ by less than a fifth in tokens."""

OUTLIER = 1.5
"""A step counts as at most so many times what was expected: something else took the rest of its time."""

GUESSED_SMALL, GUESSED_GROWTH = 1.15, 0.5
"""Guesses for sizes without a step so far: what one of the smallest bucket takes in terms of one token, and the power
of its tokens by which a larger one grows. Rather too little: what is tried is known afterwards."""


class StepCosts:
    """Seconds of steps that only decode, by number of tokens.

    Where padding is computed, a step takes as long as others of its bucket; else, sizes between known ones take what
    lies between.
    """

    def __init__(self, sizes: Sequence[int], *, computes_padding: bool, planned: Mapping[int, float] = {}) -> None:
        """`sizes` are the tokens of the buckets, in order; `planned` has seconds of each, where that is known."""
        self._buckets = np.array(sizes, np.int64)
        self._computes_padding = computes_padding
        between = [] if computes_padding else [round(2 ** (step / SIZES_PER_DOUBLING)) for step in range(64)]
        between = [size for size in between if size < sizes[-1]]
        self._sizes = np.array(sorted({*sizes, *between}), np.int64)
        smallest = next((size for size in sizes if size > 1), 1)
        guess = [planned.get(int(size)) or _guess(int(size), smallest) for size in self._sizes]
        self._guess: Floats = np.array(guess)
        self._expected_seconds: Floats | None = self._guess
        fit_rising(np.ones(1), np.ones(1), np.ones(1))  # Compile now, which takes a moment, and not in a step.
        self._known: Floats = np.full(len(self._sizes), np.nan)
        self._weights: Floats = np.zeros(len(self._sizes))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Take the time of a step."""
        place = self._place(num_tokens)
        if self._weights[place]:
            # Often: what is expected of all sizes would have to be computed again in every step.
            seconds = min(seconds, OUTLIER * self._known[place])
        elif self._weights.any():
            seconds = min(seconds, OUTLIER * self._seconds[place])
        before = self._known[place] if self._weights[place] else seconds
        # The first few count alike: one that something held up is soon outweighed.
        self._weights[place] = KEPT * self._weights[place] + 1
        self._known[place] = before + (seconds - before) / self._weights[place]
        self._expected_seconds = None

    @property
    def _seconds(self) -> Floats:
        """Of each size. Made when it is asked for: most steps have no drafts to choose from."""
        if self._expected_seconds is None:
            self._expected_seconds = self._expected()
        return self._expected_seconds

    def knows(self, num_tokens: int) -> bool:
        """Whether a step of about so many tokens was observed."""
        return bool(self._weights[self._place(num_tokens)])

    def _place(self, num_tokens: int) -> int:
        place = min(int(np.searchsorted(self._sizes, num_tokens)), len(self._sizes) - 1)
        if self._computes_padding or not place:
            return place
        below, above = self._sizes[place - 1 : place + 1]
        return place - 1 if num_tokens - below < above - num_tokens else place

    def of(self, num_tokens: npt.NDArray[np.integer]) -> Floats:
        """Seconds of steps of so many tokens, [n]; only their ratios mean anything before the first was observed."""
        if self._computes_padding:
            return self._seconds[np.minimum(np.searchsorted(self._sizes, num_tokens), len(self._sizes) - 1)]
        return np.interp(num_tokens, self._sizes, self._seconds)

    def _expected(self) -> Floats:
        """Seconds of a step of each size: between known sizes what lies between, and beyond them what guesses say."""
        places = np.flatnonzero(self._weights)
        known = np.empty(len(places))
        fit_rising(self._known[places], self._weights[places], known)
        sizes = self._sizes[places]
        nearest = np.clip(np.arange(len(self._sizes)), places[0], places[-1])
        seconds: Floats = np.interp(self._sizes, sizes, known) * self._guess / self._guess[nearest]
        # Where time has grown faster than guessed up to the last known size, it goes on so.
        last, half = sizes[-1], sizes[-1] / 2
        if sizes[0] <= half:
            growth = np.log2(known[-1] / np.interp(half, sizes, known))
            larger = slice(places[-1], None)
            grown = known[-1] * (self._sizes[larger] / last) ** min(growth, 1.0)
            seconds[larger] = np.maximum(seconds[larger], grown)
        return np.maximum.accumulate(seconds)


@compiled
def fit_rising(values: Any, weights: Any, fitted: Any) -> None:
    """Write to `fitted` [n] what is nearest to `values` and never falls: neighbours that fall take their mean.

    One step that something else held up would otherwise make all larger sizes look as slow.
    """
    means, sums, ends = np.empty(len(values)), np.empty(len(values)), np.empty(len(values), np.int64)
    count = 0
    for place in range(len(values)):
        mean, weight = values[place], weights[place]
        while count and means[count - 1] > mean:
            count -= 1
            mean = (mean * weight + means[count] * sums[count]) / (weight + sums[count])
            weight += sums[count]
        means[count], sums[count], ends[count] = mean, weight, place + 1
        count += 1
    begin = 0
    for block in range(count):
        fitted[begin : ends[block]] = means[block]
        begin = ends[block]


def _guess(size: int, smallest: int) -> float:
    """What a step takes in terms of one token, where `smallest` is the first bucket of several."""
    if size <= smallest:
        return 1 + (GUESSED_SMALL - 1) * (size - 1) / max(1, smallest - 1)
    return GUESSED_SMALL * float((size / smallest) ** GUESSED_GROWTH)
