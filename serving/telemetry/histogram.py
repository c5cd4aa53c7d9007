"""A histogram that takes many values at once: `prometheus_client` observes one by one, each under a lock."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

FEW = 48
"""Up to so many values a loop is faster than the array operations."""


class Histogram:
    """Counts of values up to each of `bounds` (ascending), and their sum, as Prometheus defines them."""

    __slots__ = ("_array", "_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._array = np.array(bounds, np.float64)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds, without the last, which is infinity."""
        return self._bounds

    def observe(self, value: float, times: int = 1) -> None:
        """Count one value, `times` over."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def observe_all(self, values: Sequence[float]) -> None:
        """Count each of `values`."""
        counts = self._counts
        if len(values) <= FEW:
            bounds = self._bounds
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            self.sum += sum(values)
            return
        array = np.array(values, np.float64)
        new = np.bincount(np.searchsorted(self._array, array), minlength=len(counts))
        for index in np.flatnonzero(new).tolist():
            counts[index] += int(new[index])
        self.sum += float(array.sum())

    def state(self) -> tuple[list[int], float]:
        """Counts between the bounds, and the sum: what `add` takes."""
        return list(self._counts), self.sum

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add the values of another histogram with the same bounds."""
        self._counts = [mine + more for mine, more in zip(self._counts, counts, strict=True)]
        self.sum += total

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound as text, number of values up to it), the last for "+Inf"."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
