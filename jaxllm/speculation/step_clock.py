"""When steps begin and end, as the host sees it."""

import time
from collections import deque

KEPT = 0.9
LONGEST_GAP = 0.1
"""Seconds; after a longer one there was nothing to do."""


class StepClock:
    """Measures how long steps take, and how long the device waits for the host between two of them."""

    def __init__(self) -> None:
        self.gap_seconds = 0.0
        """Between the end of a step that the next one had to wait for, and the beginning of that."""
        self._under_way: deque[tuple[object, float]] = deque()
        self._last_end = 0.0

    def begin(self, step: object) -> None:
        """A step begins."""
        now = time.monotonic()
        gap = now - self._last_end
        if not self._under_way and gap < LONGEST_GAP:
            self.gap_seconds = KEPT * self.gap_seconds + (1 - KEPT) * gap if self.gap_seconds else gap
        self._under_way.append((step, now))

    def end(self, step: object) -> float | None:
        """A step ends: the seconds since it began, or since the one before it ended. None if nobody saw it begin."""
        before, self._last_end = self._last_end, time.monotonic()
        while self._under_way:
            found, began = self._under_way.popleft()
            if found is step:
                return self._last_end - max(began, before)
        return None
