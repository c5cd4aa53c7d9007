"""Notices when an engine that should answer does not."""

import threading


class Heartbeat:
    """How long the engine owes an answer. Thread-safe; times are seconds of the monotonic clock."""

    def __init__(self, limit: float) -> None:
        """After `limit` seconds without an answer the engine counts as hanging."""
        self.limit = limit
        self._owed_since: float | None = None
        self._lock = threading.Lock()

    def expect(self, now: float) -> None:
        """Something was sent that will be answered."""
        with self._lock:
            if self._owed_since is None:
                self._owed_since = now

    def heard(self, now: float, *, busy: bool) -> None:
        """The engine said something; while it is busy, the next answer is owed from now on."""
        with self._lock:
            self._owed_since = now if busy else None

    def silence(self, now: float) -> float:
        """Seconds for which an answer has been owed."""
        with self._lock:
            return 0.0 if self._owed_since is None else now - self._owed_since
