"""Which adapters requests run with or wait for, by name, and how often adapters were moved."""

from collections import Counter
from typing import NamedTuple

MAX_NAMES = 128
"""Waiting adapters that are told by name. Thousands may wait, and every step tells of them."""


class AdapterStats(NamedTuple):
    """What `AdapterUse` has counted: names of adapters in use and waited for, and totals since the start."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    num_reads: int = 0
    num_writes: int = 0


class AdapterUse:
    """Counts requests by the name of their adapter. A request waits, then runs, then ends."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._stats: AdapterStats | None = AdapterStats()
        self._num_reads = self._num_writes = 0

    def wait(self, name: str) -> None:
        """A request waits for an adapter."""
        self._waiting[name] += 1
        self._stats = None

    def run(self, name: str) -> None:
        """A request that has waited has its adapter in a slot."""
        self._leave(self._waiting, name)
        self._running[name] += 1

    def end(self, name: str, *, has_run: bool) -> None:
        """A request has ended, while it waited or after."""
        self._leave(self._running if has_run else self._waiting, name)

    def count_read(self) -> None:
        """An adapter was read from its folder."""
        self._num_reads += 1
        self._stats = None

    def count_write(self) -> None:
        """An adapter was written to a slot."""
        self._num_writes += 1
        self._stats = None

    def stats(self) -> AdapterStats:
        """As it stands. Made again only after a change: every step asks."""
        if self._stats is None:
            waiting = sorted(self._waiting)[:MAX_NAMES]
            self._stats = AdapterStats(tuple(sorted(self._running)), tuple(waiting), self._num_reads, self._num_writes)
        return self._stats

    def _leave(self, counter: Counter[str], name: str) -> None:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]
        self._stats = None
