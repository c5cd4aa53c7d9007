"""A histogram that takes many values at once: `prometheus_client` observes one by one, each under a lock."""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from prometheus_client.samples import Exemplar

FEW = 48
"""Up to so many values a loop is faster than the array operations."""
Exemplars: TypeAlias = dict[int, tuple[str, float, float]]
"""By bucket: the trace of the last traced value, the value, and when it was observed, in seconds since 1970."""
HistogramState: TypeAlias = tuple[list[int], float, Exemplars]
"""Counts between the bounds, the sum of the values, and the exemplars."""
Bucket: TypeAlias = tuple[str, float] | tuple[str, float, Exemplar]
"""Upper bound as text, number of values up to it, and the exemplar if there is one: as `prometheus_client` takes it."""


class Histogram:
    """Counts of values up to each of `bounds` (ascending), and their sum, as Prometheus defines them."""

    __slots__ = ("_array", "_bounds", "_counts", "_exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._array = np.array(bounds, np.float64)
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: Exemplars = {}
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

    def set_exemplar(self, value: float, trace_id: str) -> None:
        """Name the trace of a value, which is counted apart from this; its bucket keeps the last one."""
        self._exemplars[bisect_left(self._bounds, value)] = trace_id, value, time.time()

    def state(self) -> HistogramState:
        """All that `add` takes."""
        return list(self._counts), self.sum, dict(self._exemplars)

    def add(self, counts: Sequence[int], total: float, exemplars: Mapping[int, tuple[str, float, float]]) -> None:
        """Add the values of another histogram with the same bounds; each bucket keeps the newer exemplar."""
        self._counts = [mine + more for mine, more in zip(self._counts, counts, strict=True)]
        self.sum += total
        for place, exemplar in exemplars.items():
            known = self._exemplars.get(place)
            if known is None or known[2] < exemplar[2]:
                self._exemplars[place] = exemplar

    def buckets(self) -> list[Bucket]:
        """The buckets in order, the last for "+Inf"."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        # A copy, as another thread may be observing.
        exemplars, found = dict(self._exemplars), list[Bucket]()
        for place, pair in enumerate(zip(names, map(float, accumulate(self._counts)), strict=True)):
            known = exemplars.get(place)
            if known is None:
                found.append(pair)
            else:
                trace_id, value, moment = known
                found.append((*pair, Exemplar({"trace_id": trace_id}, value, round(moment, 3))))
        return found
