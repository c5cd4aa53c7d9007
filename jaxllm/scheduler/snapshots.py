"""When states of recurrent layers are copied: into snapshots while prompts are computed, and back where one is found.

A state is that after one token; unlike keys and values, it cannot be cut back to an earlier one. So a prompt's chunks
end where a snapshot is worth having:

- at the last full page of what is known when a request starts, from which the same prompt, or one that goes on, starts;
- where the pages of another request end that began with the same tokens, such as the same system prompt;
- every `interval` tokens, in outputs as well. A long prompt has many of these, and only the last of a request that
  leaves is likely to be found: so they make way before others, unless `KVManager.retention` wants them.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

FEWEST_PAGES = 4
"""A prompt that computes fewer is done in one chunk, unless its beginning is known to be shared: another step would
cost more than to compute it again."""

Copies = list[tuple[int, int]]


class _Taken(NamedTuple):
    """A snapshot that a step makes of one of its rows."""

    owner: int
    """The slot of the row."""
    end: int
    """Tokens that are computed then."""
    slot: int
    spare: bool


class StateSnapshots:
    """The snapshots that steps take and requests begin with. `RequestTable.cuts` has the end of a slot's next chunk."""

    def __init__(self, table: RequestTable, pages: KVManager, pool: SnapshotPool, interval: int) -> None:
        """`interval` is in tokens; it is rounded up to whole pages."""
        self._table, self._pages, self._pool = table, pages, pool
        self._size = pages.block_size
        self._interval = -(-interval // self._size) * self._size
        self._ends: dict[int, list[int]] = {}  # of slots: chunks' ends that are no multiple of the interval, last first
        self._restored: Copies = []
        self._under_way: deque[tuple[StepPlan, list[_Taken]]] = deque()

    def admitted(self, request: Request, num_cached: int) -> None:
        """A request got a slot; it begins with the snapshot after its first `num_cached` tokens, if there are any."""
        slot = request.slot
        if num_cached:
            found = self._pool.find(request.page_hashes[num_cached // self._size - 1])
            assert found is not None, "a prefix was found without its state"
            self._restored.append((found, slot))
        if not self._pages.enable_prefix_caching:
            return
        last = (request.num_tokens - 1) // self._size * self._size
        shared = self._pages.num_shared_tokens(request)
        ends = {last} if last >= num_cached + FEWEST_PAGES * self._size else set()
        self._ends[slot] = sorted((end for end in ends | {shared} if end > num_cached), reverse=True)
        self._set_cut(slot, num_cached)

    def left(self, request: Request, num_computed: int) -> None:
        """A request with so many computed tokens loses its slot: it may go on from its last snapshot."""
        self._ends.pop(request.slot, None)
        place = num_computed // self._interval * self._interval // self._size
        if 0 < place <= len(request.page_hashes):
            digest = request.page_hashes[place - 1]
            if self._pool.find(digest) is not None and self._pages.tier is not None:
                self._pages.tier.stores.offer_state(digest)

    def cut(self, slots: Int32Array, counts: Int32Array) -> Int32Array:
        """How many tokens each of `slots` computes, int32 [n], so that no chunk goes beyond its next end."""
        left = self._table.cuts[slots] - self._table.num_computed[slots]
        within: Int32Array = np.where(left > 0, np.minimum(counts, left), counts)
        return within

    def cut_drafts(self, slots: Int32Array, counts: Int32Array) -> Int32Array:
        """How many drafts each of `slots` may have after what is scheduled, int32 [n].

        A state is kept before the drafts of its step. So none reaches the next end: the token there must be
        known to be right.
        """
        left = self._table.cuts[slots] - self._table.num_computed[slots] - 1
        within: Int32Array = np.where(self._table.cuts[slots] > 0, np.minimum(counts, left), counts)
        return within

    def scheduled(self, plan: StepPlan, ends: Int32Array) -> None:
        """Say what the plan copies; its rows compute up to `ends`, int32 [n]."""
        plan.states_before += self._restored
        self._restored = []
        taken: list[_Taken] = []
        for row in np.flatnonzero(ends == self._table.cuts[plan.slots]).tolist():
            slot, end = int(plan.slots[row]), int(ends[row])
            spare = end not in self._ends[slot] and not self._pages.retention.keeps_state(end, self._interval)
            self._set_cut(slot, end)
            place = end // self._size - 1
            hashes = plan.requests[row].page_hashes
            if place < len(hashes) and self._pool.find(hashes[place]) is not None:
                continue
            found = self._pool.take()
            if found is not None:
                taken.append(_Taken(slot, end, found, spare))
                plan.states_behind.append((slot, found))
        if taken:
            self._under_way.append((plan, taken))

    def updated(self, plan: StepPlan, live: npt.NDArray[np.bool_], later: Collection[StepPlan]) -> None:
        """Let the snapshots of a step be found, of rows whose requests are still there (bool [n]).

        `later` are the steps that are still under way.
        """
        while self._under_way and self._under_way[0][0] not in later:
            made, taken = self._under_way.popleft()
            for owner, end, slot, spare in taken:
                row = int(np.flatnonzero(plan.slots == owner)[0]) if made is plan else 0
                if made is plan and live[row]:
                    digest = plan.requests[row].page_hashes[end // self._size - 1]
                    self._pool.publish(digest, slot, spare=spare)
                    if self._pages.tier is not None and not spare:
                        self._pages.tier.stores.offer_state(digest)
                else:
                    # Its request is gone, or the step was left out because all were.
                    self._pool.give_back(slot)

    def _set_cut(self, slot: int, computed: int) -> None:
        """Note where the next snapshot of a slot with so many computed tokens is taken."""
        ends = self._ends[slot]
        while ends and ends[-1] <= computed:
            ends.pop()
        regular = (computed // self._interval + 1) * self._interval
        self._table.cuts[slot] = min(ends[-1], regular) if ends else regular

    def check_integrity(self) -> None:
        """Assert that nothing is forgotten, and no copy is left over."""
        assert not self._restored
        loads = [] if self._pages.tier is None else self._pages.tier.loads.held_slots()
        self._pool.check_integrity([*loads, *(each.slot for _, taken in self._under_way for each in taken)])
        for slot, request in enumerate(self._table.requests):
            cut = int(self._table.cuts[slot])
            assert cut % self._size == 0
            if cut:
                assert request is not None
                assert cut > self._table.num_computed[slot]
        running = {slot for slot, request in enumerate(self._table.requests) if request is not None}
        assert set(self._ends) <= running
