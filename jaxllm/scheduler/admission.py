"""Admission: waiting requests get slots and pages."""

from collections.abc import Callable, Container

import numpy as np

from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.scheduler.fair_queue import FairQueue
from jaxllm.scheduler.groups import SequenceGroups
from jaxllm.scheduler.queue import RunningOrder
from jaxllm.scheduler.room import Room
from jaxllm.scheduler.shares import Shares
from jaxllm.scheduler.snapshots import StateSnapshots
from jaxllm.scheduler.spans import WholeSpans
from jaxllm.scheduler.table import RequestTable


class Admission:
    """Moves requests from those that wait to those that run."""

    def __init__(
        self,
        table: RequestTable,
        waiting: FairQueue[Request],
        running: RunningOrder,
        shares: Shares,
        groups: SequenceGroups,
        room: Room,
        pages: KVManager,
        *,
        budget: int,
        max_chunk: int,
        snapshots: StateSnapshots | None = None,
        spans: WholeSpans | None = None,
        hold: Callable[[Request], None],
    ) -> None:
        """`budget` is of one step, `max_chunk` of one prompt in it, both in tokens.

        `hold` keeps a waiting request from running until pages have come from the host.
        """
        self._table, self._waiting, self._running, self._shares = table, waiting, running, shares
        self._groups, self._room, self._pages = groups, room, pages
        self._budget, self._max_chunk, self._snapshots = budget, max_chunk, snapshots
        self._spans, self._hold = spans, hold

    def admit(self, budget: int, owners: Container[int] | None = None) -> tuple[list[Request], list[int]]:
        """Give slots to waiting requests in order while budget, slots and pages last; with their new tokens.

        With `owners`, by their index, only to what these have in front of others.
        """
        table = self._table
        admitted, counts = list[Request](), list[int]()
        # As only budget left over is given away, there are never more running requests than tokens in the budget, and
        # each decode gets its token in every step.
        free = table.num_free_slots
        if budget <= 0 and len(self._running) >= self._budget:
            self._room.blocked = self._waiting.peek()
        while budget > 0 and (request := self._waiting.peek()) is not None:
            if owners is not None and request.share not in owners:
                break
            # All sequences of a group come and go together; while it computes its prompt they take no part of the
            # budget, but later each takes its token.
            sequences, running = request.sequences, len(self._running)
            if len(sequences) > min(free, self._budget - running):
                self._room.blocked = request
                break
            if self._spans is not None and not self._has_first(request, budget):
                break
            # It gets pages for all its known tokens, and leaves one for each running request: otherwise it would be
            # preempted by the next requests that cross a page, and all its work lost.
            headroom = running + len(sequences) - 1
            if self._pages.tier is not None and self._waits_for_host(request, headroom):
                continue
            found = self._pages.admit(request, headroom)
            if found is None:
                self._room.blocked = request
                break
            pages, num_cached = found
            if request.num_preemptions:
                self._room.spend(request.num_tokens - num_cached)
            else:
                self._shares.charge(request.share, request.num_tokens - num_cached)
            self._waiting.take(request)
            self._shares.running[request.share] += len(sequences)
            slot = table.insert(request, pages, num_cached)
            if request.group is not None:
                self._groups.open(request.group)
            for each in sequences:
                self._running.add(each)
            admitted += sequences
            free -= len(sequences)
            counts.append(
                min(int(table.num_tokens[slot]) - num_cached, self._max_chunk, budget)
                if self._spans is None
                else self._first_count(request, num_cached, budget)
            )
            if self._snapshots is not None:
                self._snapshots.admitted(request, num_cached)
                counts[-1] = int(self._snapshots.cut(np.array([slot]), np.array(counts[-1:]))[0])
            budget -= counts[-1]
        return admitted, counts

    def _waits_for_host(self, request: Request, headroom: int) -> bool:
        """Whether a request is held from now on, until pages have come from the host."""
        waits = self._pages.begin_load(request, headroom)
        if waits:
            self._hold(request)
        return waits

    def _has_first(self, request: Request, budget: int) -> bool:
        """Whether `budget` tokens are enough to begin with: not where a longer span comes first."""
        if self._spans is None or request.media is None:
            return True
        return self._first_count(request, self._pages.num_cached_tokens(request), budget) > 0

    def _first_count(self, request: Request, num_cached: int, budget: int) -> int:
        """How many tokens of `budget` a request computes first, if `num_cached` of its tokens are cached."""
        count = min(request.num_tokens - num_cached, self._max_chunk)
        if self._spans is None or request.media is None:
            return min(count, budget)
        count = max(count, self._spans.needed(request, num_cached))
        return self._spans.cut(request, num_cached, min(count, budget))
