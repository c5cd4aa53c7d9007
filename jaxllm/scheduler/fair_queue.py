"""A queue in which owners take turns, and the requests of each are in order."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from jaxllm.scheduler.shares import Shares

Item = TypeVar("Item")


@dataclass(eq=False)
class _Level(Generic[Item]):
    """What waits with one priority: a heap per owner, and a heap of owners, whose entries may be out of date."""

    lines: dict[int, list[tuple[int, Item]]] = field(default_factory=dict)
    owners: list[tuple[float, int, int]] = field(default_factory=list)  # served, arrival of the first, index


class FairQueue(Generic[Item]):
    """Requests by priority, lowest number first; then the owner that was given least; then by arrival.

    With one owner it is a queue by priority and arrival. An item that is pushed again returns to its own place.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._levels: dict[int, _Level[Item]] = {}
        self._priorities: list[int] = []
        self._live: dict[Item, int] = {}  # and their owners; removal is lazy: only what is in here counts
        self._counts: dict[int, int] = {}  # by owner

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def __iter__(self) -> Iterator[Item]:
        """All that waits, in no particular order."""
        return iter(self._live)

    def push(self, item: Item, owner: int, priority: int, arrival: int) -> None:
        """Add an item of the owner with this index in `Shares`. No other has its arrival."""
        self._live[item] = owner
        self._counts[owner] = self._counts.get(owner, 0) + 1
        if self._counts[owner] == 1:
            self._shares.begin_waiting(owner)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            heapq.heappush(self._priorities, priority)
        line = level.lines.setdefault(owner, [])
        if self._counts[owner] == 1 or not line or arrival < line[0][0]:
            heapq.heappush(level.owners, (float(self._shares.served[owner]), arrival, owner))
        heapq.heappush(line, (arrival, item))

    def peek(self) -> Item | None:
        """The first in order, or None."""
        while self._priorities:
            level = self._levels[self._priorities[0]]
            first = self._first(level)
            if first is not None:
                return first
            del self._levels[heapq.heappop(self._priorities)]
        return None

    def _first(self, level: _Level[Item]) -> Item | None:
        served = self._shares.served
        while level.owners:
            entry = level.owners[0]
            owner = entry[2]
            line = level.lines.get(owner, [])
            while line and self._live.get(line[0][1]) is None:
                heapq.heappop(line)
            if not line:
                heapq.heappop(level.owners)
                level.lines.pop(owner, None)
                continue
            now = (float(served[owner]), line[0][0], owner)
            if entry == now:
                return line[0][1]
            heapq.heapreplace(level.owners, now)
        return None

    def take(self, item: Item) -> None:
        """Take out the item that `peek` has just returned."""
        line = self._levels[self._priorities[0]].lines[self._live[item]]
        _, first = heapq.heappop(line)
        assert first is item
        self.remove(item)

    def remove(self, item: Item) -> None:
        """Take out an item, wherever it stands."""
        owner = self._live.pop(item)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]
            self._shares.end_waiting(owner)
