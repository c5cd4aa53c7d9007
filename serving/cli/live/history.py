"""What the events of a server make together: rates and quantiles from differences of totals."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

Snapshot = Mapping[str, Any]
"""An event, as `jaxllm.serving.ui.live.Snapshot` in JSON."""

WINDOW: Final = 120.0
"""Seconds of the curve."""
_RATE_SECONDS: Final = 5.0
_HISTOGRAM_SECONDS: Final = 60.0


class History:
    """The snapshots of the last two minutes."""

    def __init__(self, bounds: Mapping[str, Sequence[float]]) -> None:
        """`bounds` of the histograms, in seconds, come with the first event."""
        self._bounds = bounds
        self._snapshots: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Take a snapshot. Totals that fall begin a new history: the server has restarted."""
        if self._snapshots and _generated(snapshot) < _generated(self._snapshots[-1]):
            self._snapshots.clear()
        self._snapshots.append(snapshot)
        while snapshot["time"] - self._snapshots[0]["time"] > WINDOW:
            self._snapshots.popleft()

    def speeds(self) -> list[float]:
        """Generated tokens per second between each two snapshots."""
        return [
            (_generated(now) - _generated(before)) / max(now["time"] - before["time"], 1e-3)
            for before, now in pairwise(self._snapshots)
        ]

    def rate(self, counter: str) -> float:
        """The growth of a counter per second, over the last five."""
        now, before = self._snapshots[-1], self._since(_RATE_SECONDS)
        seconds = now["time"] - before["time"]
        return (now["counters"][counter] - before["counters"][counter]) / seconds if seconds else 0.0

    def share(self, part: str, whole: str) -> float | None:
        """How much of a counter's growth within a minute another one has; None where nothing grew."""
        now, before = self._snapshots[-1]["counters"], self._since(_HISTOGRAM_SECONDS)["counters"]
        grown = now[whole] - before[whole]
        return (now[part] - before[part]) / grown if grown else None

    def quantile(self, name: str, share: float) -> float | None:
        """A quantile of the last minute in seconds, as Prometheus has it: even within a bucket. None where empty."""
        now, before = self._snapshots[-1]["histograms"][name], self._since(_HISTOGRAM_SECONDS)["histograms"][name]
        counts = [after - earlier for after, earlier in zip(now, before, strict=True)]
        bounds, wanted, seen = self._bounds[name], share * sum(counts), 0
        for index, count in enumerate(counts):
            if count and seen + count >= wanted:
                low = bounds[index - 1] if index else 0.0
                high = bounds[min(index, len(bounds) - 1)]
                return low + (high - low) * (wanted - seen) / count
            seen += count
        return None

    def _since(self, seconds: float) -> Snapshot:
        now = self._snapshots[-1]["time"]
        recent: Callable[[Snapshot], bool] = lambda each: now - each["time"] <= seconds  # noqa: E731
        return next(filter(recent, self._snapshots))


def _generated(snapshot: Snapshot) -> int:
    return int(snapshot["counters"]["generation_tokens"])
