"""How often something that dies may be started again, and how soon."""

import time
from collections import deque
from collections.abc import Callable

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0
_RECENT = 30.0


class RestartBudget:
    """At most so many restarts within a window of time; those that follow each other wait longer and longer."""

    def __init__(self, most: int | None, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`most` restarts within `window` seconds, None: any number."""
        self._most, self._window, self._clock = most, window, clock
        self._taken: deque[float] = deque()

    def take(self) -> float | None:
        """Seconds to wait before the next restart, which is counted; None when there may be no more."""
        now = self._clock()
        while self._taken and now - self._taken[0] > self._window:
            self._taken.popleft()
        if self._most is not None and len(self._taken) >= self._most:
            return None
        # What has lived for a while is started at once.
        recent = sum(now - taken <= _RECENT for taken in self._taken)
        self._taken.append(now)
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (recent - 1)) if recent else 0.0

    def __str__(self) -> str:
        """Why there may be no more, behind the reason of the last end."""
        if not self._most:
            return ""
        return f"; there were {self._most} restarts within {self._window:g} s (max_restarts, restart_window)"
