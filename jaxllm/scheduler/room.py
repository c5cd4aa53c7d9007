"""Who makes room for others, where there are several owners."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.scheduler.queue import RunningOrder
from jaxllm.scheduler.shares import Shares
from jaxllm.scheduler.table import RequestTable

Floats = npt.NDArray[np.float64]

RECOMPUTED_SHARE = 0.01
"""Share of the computed tokens that may be recomputed to make room for others."""


class Room:
    """Chooses who gives up slots and pages, by the owners' weights.

    What an owner uses is the larger of its shares of slots and of pages (dominant resource fairness, Ghodsi et al.,
    2011). The first running request in order is never made to yield, and no owner loses its last one to another: so
    something always finishes.

    Tokens of those who made room may have to be computed again when they return. That is paid from an allowance, a
    small share of the tokens computed: when it is spent, those who wait get what becomes free. An owner that has a
    slot already leaves half of it to those who have none.
    """

    def __init__(
        self, table: RequestTable, running: RunningOrder, shares: Shares, pages: KVManager, budget: int
    ) -> None:
        self._table, self._running, self._shares, self._pages = table, running, shares, pages
        self._budget = budget
        self._allowance = float(budget)
        self.blocked: Request | None = None
        """The one that was first of those who wait, and found no slot or no pages."""

    def earn(self, num_tokens: int) -> None:
        """Count the tokens of a step."""
        self._allowance = min(self._budget, self._allowance + RECOMPUTED_SHARE * num_tokens)

    def spend(self, num_tokens: int) -> None:
        """Count tokens of a request that returns which are computed again."""
        self._allowance -= num_tokens

    def leaving(self, first: Request | None) -> list[Request]:
        """Running requests to make way for the one that was blocked, if it is still the `first` that waits."""
        request, self.blocked = self.blocked, None
        if request is None or request is not first:
            return []
        if self._allowance <= (self._budget / 2 if self._shares.running[request.share] else 0):
            return []
        count, running = len(request.sequences), len(self._running)
        slots = max(count - self._table.num_free_slots, running + count - self._budget)
        pages = 0 if slots > 0 else self._pages.shortage(request, headroom=running + count - 1)
        return self._leaving(request, slots, pages)

    def _leaving(self, request: Request, num_slots: int, num_pages: int) -> list[Request]:
        """Those after whom so many more slots and pages are free.

        Only of owners that use more, even afterwards, than the waiting one will use. Empty if that is not enough.
        """
        shares, own = self._shares, request.share
        slots, pages = shares.running.astype(np.float64), self._held_pages()
        slots[own] += len(request.sequences)
        pages[own] += self._pages.groups.usual_pages(request.num_tokens)
        usage = self._usage(slots, pages)
        if not (usage > usage[own]).any():
            return []
        later: dict[int, list[Request]] = {}
        for leader in self._leaders():
            if self._table.priorities[leader.slot] >= request.priority or not self._table.by_priority:
                later.setdefault(leader.share, []).append(leader)
        leaving: list[Request] = []
        while num_slots > 0 or num_pages > 0:
            owner = max(later, key=lambda each: usage[each], default=own)
            if usage[owner] <= usage[own]:
                return []
            victim = later[owner].pop(0)
            if not later[owner]:
                del later[owner]
            if len(victim.sequences) >= slots[owner]:
                continue
            leaving.append(victim)
            freed = int(sum(self._table.count_held(each.slot) for each in victim.sequences))
            num_slots, num_pages = num_slots - len(victim.sequences), num_pages - freed
            slots[owner] -= len(victim.sequences)
            pages[owner] -= freed
            usage = self._usage(slots, pages)
        return leaving

    def yields(self) -> Request:
        """The one to give up its pages when they run out: of the owner with most pages, the last in order.

        Only least urgent requests are considered.
        """
        last = self._running.last
        lowest = self._table.priorities[last.slot]
        pages = self._held_pages() / self._shares.weights
        found, most = last, -1.0
        for leader in self._last_of_owners():
            owner = leader.share
            if self._table.priorities[leader.slot] != lowest:
                break
            if pages[owner] > most and len(leader.sequences) < self._shares.running[owner]:
                found, most = leader, float(pages[owner])
        return found

    def _held_pages(self) -> Floats:
        slots = self._running.slots
        size = len(self._shares.served)
        held = np.bincount(self._table.owners[slots], self._table.count_held(slots), minlength=size)
        return held.astype(np.float64)

    def _usage(self, slots: Floats, pages: Floats) -> Floats:
        num_slots, num_pages = self._table.num_slots, self._pages.num_pages - 1
        usage: Floats = np.maximum(slots / num_slots, pages / num_pages) / self._shares.weights
        return usage

    def _leaders(self) -> Iterator[Request]:
        """Running requests, the last in order first; of a group its leader."""
        for request in reversed(self._running.requests):
            if request.group is None or request.group.leader is request:
                yield request

    def _last_of_owners(self) -> Iterator[Request]:
        seen: set[int] = set()
        for leader in self._leaders():
            if leader.share not in seen:
                seen.add(leader.share)
                yield leader
