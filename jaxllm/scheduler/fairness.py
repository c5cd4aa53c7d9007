"""Who makes room for others, and how the tokens of a step are divided, where there are several owners.

Nothing here is called while all requests have one owner.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.request import Request
from jaxllm.scheduler.queue import RunningOrder
from jaxllm.scheduler.shares import Shares
from jaxllm.scheduler.table import RequestTable

Floats = npt.NDArray[np.float64]


class Fairness:
    """Divides slots, pages and tokens by the owners' weights.

    What an owner uses is the larger of its shares of slots and of pages (dominant resource fairness, Ghodsi et al.,
    2011). The first running request in order is never made to yield, and no owner loses its last one to another: so
    something always finishes.
    """

    def __init__(self, table: RequestTable, running: RunningOrder, shares: Shares, pages: KVManager) -> None:
        self._table, self._running, self._shares, self._pages = table, running, shares, pages

    def yields(self) -> Request:
        """The one to give up its pages when they run out: of the owner with most pages, the last in order.

        Of least urgent requests only.
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

    def room_for(self, request: Request, num_slots: int, num_pages: int) -> list[Request]:
        """Running requests to make way for one that waits, so that so many more slots and pages are free.

        Only of owners that use more, even afterwards, than the waiting one will use. Empty if that is not enough.
        """
        shares, own = self._shares, request.share
        slots, pages = shares.running.astype(np.float64), self._held_pages()
        slots[own] += len(request.sequences)
        pages[own] += self._pages.pages_for(request.num_tokens)
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
            freed = int(sum(self._table.num_pages[each.slot] for each in victim.sequences))
            num_slots, num_pages = num_slots - len(victim.sequences), num_pages - freed
            slots[owner] -= len(victim.sequences)
            pages[owner] -= freed
            usage = self._usage(slots, pages)
        return leaving

    def reserve(self, prefills: Int32Array, budget: int, head: Request) -> int:
        """Tokens of a step's `budget` to keep for waiting requests of owners that have none among `prefills`, slots."""
        if not len(prefills):
            return budget
        if self._table.priorities[prefills].min() < head.priority and self._table.by_priority:
            return 0
        weights = self._shares.weights
        computing = np.unique(self._table.owners[prefills])
        others = [index for index in self._shares.waiting if index not in computing]
        waiting = float(weights[others].sum())
        share = -(-budget * waiting // (waiting + float(weights[computing].sum())))
        return min(int(share), budget - 1)  # the first that runs goes on in every step

    def divide(self, slots: Int32Array, wanted: Int32Array, budget: int) -> Int32Array:
        """Divide the tokens of a step between prompts, int32 [n]: equally by owners' weights, in order for each owner.

        slots, wanted: int32 [n], in order. What one owner does not want the others get.
        """
        if self._table.by_priority and len(np.unique(self._table.priorities[slots])) > 1:
            return in_order(wanted, budget)
        owners, of_row = np.unique(self._table.owners[slots], return_inverse=True)
        if len(owners) < 2:
            return in_order(wanted, budget)
        each = fill(np.bincount(of_row, wanted).astype(np.float64), self._shares.weights[owners], budget)
        counts = np.zeros_like(wanted)
        for index, share in enumerate(each.tolist()):
            rows = of_row == index
            counts[rows] = in_order(wanted[rows], share)
        # Shares are whole tokens: a few may be left.
        return counts + in_order(wanted - counts, budget - int(counts.sum()))

    def _held_pages(self) -> Floats:
        slots = self._running.slots
        size = len(self._shares.served)
        held = np.bincount(self._table.owners[slots], self._table.num_pages[slots], minlength=size)
        return held.astype(np.float64)

    def _usage(self, slots: Floats, pages: Floats) -> Floats:
        num_slots, num_pages = len(self._table.requests), self._pages.num_pages - 1
        usage: Floats = np.maximum(slots / num_slots, pages / num_pages) / self._shares.weights
        return usage

    def _leaders(self) -> Iterator[Request]:
        """Running requests, the last in order first; for a beam search its first sequence."""
        for request in reversed(self._running.requests):
            if request.group is None or request.group.leader is request:
                yield request

    def _last_of_owners(self) -> Iterator[Request]:
        seen: set[int] = set()
        for leader in self._leaders():
            if leader.share not in seen:
                seen.add(leader.share)
                yield leader


def in_order(wanted: Int32Array, budget: int) -> Int32Array:
    """What each gets of `budget` if the first take all they want, int32 [n]."""
    before = np.cumsum(wanted) - wanted
    return np.clip(budget - before, 0, wanted).astype(np.int32)


def fill(wanted: Floats, weights: Floats, budget: int) -> npt.NDArray[np.int64]:
    """Divide `budget` by weights, so that nobody gets more than it wants (max-min fairness), int64 [n]."""
    level_of = wanted / weights
    order = np.argsort(level_of)
    # If the level is that of the k-th, those before have all they want.
    needed = np.cumsum(wanted[order]) - wanted[order]
    heavier = np.cumsum(weights[order][::-1])[::-1]
    levels = (budget - needed) / heavier
    short = np.flatnonzero(levels < level_of[order])
    if not len(short):
        return wanted.astype(np.int64)
    return np.minimum(wanted, np.floor(levels[short[0]] * weights)).astype(np.int64)
