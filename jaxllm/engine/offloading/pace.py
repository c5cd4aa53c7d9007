"""How fast pages are copied while others wait for their next tokens, where copies take the processors that compute."""

import os
import threading
import time

SHARE = 0.03
"""Of the processor time of this process, while anything is computed. What is computed is slowed down by no more."""
PART_OF_COMPUTING = 0.15
"""Of the time that computing the same tokens would take, by the speed of a short prompt: whoever waits for a load waits
no longer than that. A prompt of 8,192 tokens is computed half as fast, and is loaded more than ten times sooner."""
LONGEST = 2.0
"""Seconds of a rest at most."""
SHORTEST_LOOK = 0.001


class Pace:
    """Threads that copy rest for a while after each piece, as long as anything is computed."""

    def __init__(self, most_waiting: int) -> None:
        """With more than `most_waiting` pages to be copied, copies are made at full speed."""
        self.most_waiting = most_waiting
        self.byte_seconds: float | None = None
        """Seconds for which the tokens that a byte holds are computed, where that is known."""
        self.is_behind = False
        """Whether so much waits to be copied that pages may be evicted before: computing them again costs far more."""
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._next = 0.0  # in processor time of the process
        self._processors = os.cpu_count() or 1

    @property
    def is_computing(self) -> bool:
        """Whether anything is computed that copies would slow down."""
        return not self._idle.is_set()

    @is_computing.setter
    def is_computing(self, value: bool) -> None:
        if value != self.is_computing:
            if value:
                self._idle.clear()
            else:
                self._idle.set()

    def rest(self, seconds: float, awaited: int = 0) -> float:
        """Let others compute after so many seconds of a processor; for a request that waits for `awaited` bytes.

        Threads share what there is, but nobody waits for what is not awaited. Returns at once when nothing is computed
        any more. The seconds that it took.
        """
        if self._idle.is_set() or (self.is_behind and not awaited):
            return 0.0
        begin, most = time.monotonic(), LONGEST
        if awaited and self.byte_seconds is not None:
            most = min(most, PART_OF_COMPUTING * self.byte_seconds * awaited)
        # Not by the clock: where other programs have the processors, copies would take most of what is left.
        now = time.process_time()
        with self._lock:
            until = (now if awaited else max(now, self._next)) + seconds / SHARE
            self._next = max(until, self._next)
        while True:
            left = begin + most - time.monotonic()
            work = until - time.process_time()
            if left <= 0 or work <= 0:
                break
            # All processors together cannot do it sooner.
            if self._idle.wait(min(left, max(work / self._processors, SHORTEST_LOOK))):
                self._next = 0.0
                break
        return time.monotonic() - begin
