"""Notices when an engine that should answer does not."""

import threading

TICK_SECONDS = 0.5
"""How often the time that passes is counted."""


class Heartbeat:
    """How long the engine owes an answer. Thread-safe.

    Time counts only as it is told by `tick`, and at most two ticks at once: when this process could not run for a
    while, because it was stopped or busy, the engine is not to blame.
    """

    def __init__(self, limit: float) -> None:
        """After `limit` seconds without an answer the engine counts as hanging."""
        self.limit = limit
        self._owed = False
        self._silence = 0.0
        self._lock = threading.Lock()

    def expect(self) -> None:
        """Something was sent that will be answered."""
        with self._lock:
            self._owed = True

    def heard(self, *, owed: bool) -> None:
        """The engine said something; if more is owed, that is from now on."""
        with self._lock:
            self._owed = owed
            self._silence = 0.0

    def settle(self, *, owed: bool) -> None:
        """Nothing was heard, but what is owed may have changed."""
        with self._lock:
            self._owed = owed
            if not owed:
                self._silence = 0.0

    def tick(self, seconds: float) -> None:
        """So much time has passed since the last tick."""
        with self._lock:
            if self._owed:
                self._silence += min(seconds, 2 * TICK_SECONDS)

    @property
    def silence(self) -> float:
        """Seconds for which an answer has been owed."""
        return self._silence

    @property
    def hangs(self) -> bool:
        """Whether that is too long."""
        return self._silence > self.limit
