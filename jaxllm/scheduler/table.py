"""The running requests as arrays, so that a decode step costs a few array operations whatever their number."""

from copy import copy
from typing import Self

import numpy as np
import numpy.typing as npt

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.pages import NULL_PAGE, Int32Array
from jaxllm.requests.request import Request
from jaxllm.scheduler.rotary_offsets import RotaryOffsets

MAX_STOP_IDS = 8
"""Stop ids of a request that are compared in one array operation; a request with more is checked in Python."""


class RequestTable:
    """One row per slot (S of them); what a slot holds while nobody uses it has no meaning, but all counts are 0.

    token_ids: int32 [S, max_model_len], prompt and output. num_tokens, num_prompt_tokens: int32 [S].
    num_pending: int32 [S], tokens that follow the known ones and are sampled by steps still under way.
    num_computed: int32 [S], tokens whose keys and values are in the cache, or will be after the steps scheduled so far.
    block_table: int32 [S, G * W], the pages of each table in order, one table after the other; 0 after the last, and
    where a page was given back. For G groups of them, begins, ends: int32 [groups, S], the first page that a slot holds
    in each table of a group, and the end of the last; num_pages: int32 [S], `ends` of the first group.
    max_total, min_total: int32 [S], tokens at which the request ends at the latest, and may stop at the earliest.
    num_unknown: int32 [S], drafts of the slot's last step under way: they are in `num_computed` and `num_pending` as if
    all of them were accepted.
    num_replayed: int32 [S], drafts of the slot's last step that were accepted, with which its next one begins: states
    of recurrent layers are still without them.
    cuts: int32 [S], where a slot's chunk ends at the latest, for `StateSnapshots`; 0: nowhere.
    stop_ids: int32 [S, 8], padded with -1; many_stops: bool [S], where 8 do not suffice.
    generation: int64 [S], changes whenever the slot changes hands.
    owners: int32 [S], indexes in `Shares`; priorities: int64 [S], all 0 unless `by_priority`.
    adapter_slots: int32 [S], where the adapters of the requests are on the devices; -1 for none.
    adapter_starts: int32 [S], the first position that has the adapter.
    media_rows: int32 [S, max_model_len], 1 + the row of the media pool that stands in place of a token; 0 where the
    token stands for itself. None where there is no pool.
    cross_pages: int32 [S], the first page of the request's sound. None where requests have none.
    rotary_offsets: by how much positions differ from places; None where they do not.
    in_group: bool [S], the slot belongs to a `SequenceGroup`, which decides about its tokens.
    requests: the owner of each slot.
    """

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        pages_per_request: int,
        *,
        by_priority: bool = False,
        groups: CacheGroups | None = None,
    ) -> None:
        """`pages_per_request` is W, of each of the tables that `groups` has, one by default."""
        self.max_model_len = max_model_len
        self.groups = CacheGroups() if groups is None else groups
        self.width = pages_per_request
        self.by_priority = by_priority
        self.token_ids: Int32Array = np.zeros((num_slots, max_model_len), np.int32)
        self.num_tokens: Int32Array = np.zeros(num_slots, np.int32)
        self.num_prompt_tokens: Int32Array = np.zeros(num_slots, np.int32)
        self.num_pending: Int32Array = np.zeros(num_slots, np.int32)
        self.num_computed: Int32Array = np.zeros(num_slots, np.int32)
        self.block_table: Int32Array = np.zeros((num_slots, self.groups.num_tables * self.width), np.int32)
        self.begins: Int32Array = np.zeros((len(self.groups.all), num_slots), np.int32)
        self.ends: Int32Array = np.zeros((len(self.groups.all), num_slots), np.int32)
        self.num_pages: Int32Array = self.ends[0]
        self.num_unknown: Int32Array = np.zeros(num_slots, np.int32)
        self.num_replayed: Int32Array = np.zeros(num_slots, np.int32)
        self.cuts: Int32Array = np.zeros(num_slots, np.int32)
        self.max_total: Int32Array = np.zeros(num_slots, np.int32)
        self.min_total: Int32Array = np.zeros(num_slots, np.int32)
        self.stop_ids: Int32Array = np.full((num_slots, MAX_STOP_IDS), -1, np.int32)
        self.many_stops = np.zeros(num_slots, np.bool_)
        self.generation: npt.NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.owners: Int32Array = np.zeros(num_slots, np.int32)
        self.priorities: npt.NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.in_group = np.zeros(num_slots, np.bool_)
        self.adapter_slots: Int32Array = np.full(num_slots, -1, np.int32)
        self.adapter_starts: Int32Array = np.zeros(num_slots, np.int32)
        self.media_rows: Int32Array | None = None
        self.cross_pages: Int32Array | None = None
        self.rotary_offsets: RotaryOffsets | None = None
        self.requests: list[Request | None] = [None] * num_slots
        self._counts = (
            self.num_tokens, self.num_prompt_tokens, self.num_pending, self.num_computed, self.max_total,
            self.num_unknown, self.num_replayed, self.cuts, *self.begins, *self.ends,
        )  # fmt: skip
        self._stop_sets: dict[int, frozenset[int]] = {}
        self.hand_out(range(num_slots))

    def part(self, slots: range) -> Self:
        """A table that hands out only some of these slots, which the whole one then must not do; the arrays are one."""
        part = copy(self)
        part.hand_out(slots)
        return part

    def hand_out(self, slots: range) -> None:
        """Begin with these slots, all of them free."""
        self._own, self._free = slots, list(slots)[::-1]

    @property
    def num_slots(self) -> int:
        """Slots that this table hands out."""
        return len(self._own)

    @property
    def num_free_slots(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    def insert(self, request: Request, pages: Int32Array, num_computed: int) -> int:
        """Give the request a slot with all its tokens so far, its pages and what they contain already; returns it."""
        slot = self._free.pop()
        request.slot = slot
        self.requests[slot] = request
        self.generation[slot] += 1
        prompt, params = request.prompt_token_ids, request.params
        num_prompt, num_tokens = len(prompt), request.num_tokens
        self.token_ids[slot, :num_prompt] = prompt
        self.token_ids[slot, num_prompt:num_tokens] = request.output_token_ids
        self.num_prompt_tokens[slot] = num_prompt
        self.num_tokens[slot] = num_tokens
        self.num_computed[slot] = num_computed
        self._set_pages(slot, pages, num_computed, num_tokens)
        room = self.max_model_len - num_prompt
        self.max_total[slot] = num_prompt + min(room, room if params.max_tokens is None else params.max_tokens)
        self.min_total[slot] = num_prompt + min(room + 1, params.min_tokens)  # beyond the room: never
        self.owners[slot] = request.share
        self.priorities[slot] = request.priority if self.by_priority else 0
        self.in_group[slot] = request.group is not None
        leader = request if request.group is None else request.group.leader
        self.adapter_slots[slot] = leader.adapter_slot
        self.adapter_starts[slot] = leader.adapter_start
        self._set_stops(slot, request)
        return slot

    def _set_pages(self, slot: int, pages: Int32Array, num_computed: int, num_tokens: int) -> None:
        """Take over the pages of `KVManager.admit`."""
        if self.groups.windows == (0,):
            self.block_table[slot, : len(pages)] = pages
            self.num_pages[slot] = len(pages)
            return
        by_table = pages.reshape(self.groups.num_tables, -1)
        self.tables(slot)[:, : by_table.shape[1]] = by_table
        for index, group in enumerate(self.groups.all if len(pages) else ()):
            self.begins[index, slot] = self.groups.begin(group, num_computed)
            self.ends[index, slot] = self.groups.end(group, num_computed, num_tokens)

    def _set_stops(self, slot: int, request: Request) -> None:
        ids = set(request.params.stop_token_ids or ())
        if not request.params.ignore_eos:
            ids.update(request.eos_token_ids)
        self.stop_ids[slot] = -1
        self.many_stops[slot] = len(ids) > MAX_STOP_IDS
        if self.many_stops[slot]:
            self._stop_sets[slot] = frozenset(ids)
        else:
            self.stop_ids[slot, : len(ids)] = list(ids)

    def behind(self, slots: Int32Array) -> Int32Array:
        """How many tokens each of `slots` has yet to compute, int32 [n]; 0 when its last one is already on its way."""
        total = self.num_tokens[slots] + self.num_pending[slots]
        missing: Int32Array = total - self.num_computed[slots]
        missing[total >= self.max_total[slots]] = 0
        return missing

    def append(self, slots: Int32Array, token_ids: Int32Array) -> npt.NDArray[np.bool_]:
        """Append one token to each of `slots` (int32 [n], distinct). Returns which of them now end, bool [n]."""
        ends = self.num_tokens[slots]
        self.token_ids[slots, ends] = token_ids
        ends += 1
        self.num_tokens[slots] = ends
        stops: npt.NDArray[np.bool_] = (self.stop_ids[slots] == token_ids[:, None]).any(axis=1)
        if self._stop_sets:
            for row in np.flatnonzero(self.many_stops[slots]).tolist():
                stops[row] = int(token_ids[row]) in self._stop_sets[int(slots[row])]
        stops &= ends >= self.min_total[slots]
        stops |= ends >= self.max_total[slots]
        return stops

    def stop_of(self, slot: int) -> int | None:
        """The last token of the slot if it is one that stops the request, else None (it ended by length)."""
        num_tokens = self.num_tokens[slot]
        token = int(self.token_ids[slot, num_tokens - 1])
        stops = token in self._stop_sets[slot] if self.many_stops[slot] else token in self.stop_ids[slot]
        return token if stops and num_tokens >= self.min_total[slot] else None

    def output_tokens(self, slot: int) -> Int32Array:
        """The tokens generated so far in this slot, int32 [n]: a view that later steps extend and overwrite."""
        return self.token_ids[slot, self.num_prompt_tokens[slot] : self.num_tokens[slot]]

    def tables(self, slot: int) -> Int32Array:
        """The page tables of this slot, int32 [G, W]: a view."""
        return self.block_table[slot].reshape(-1, self.width)

    def pages(self, slot: int) -> Int32Array:
        """The pages of this slot in order, int32 [num_pages]: a view. Several tables lie as in `KVManager`."""
        if self.groups.num_tables == 1:
            return self.block_table[slot, : self.num_pages[slot]]
        return self.tables(slot)[:, : self.ends[:, slot].max()].ravel()

    def count_held(self, slots: Int32Array | int) -> Int32Array:
        """How many pages each of `slots` holds, int32 [n]."""
        held: Int32Array = self.num_pages[slots]
        if not self.groups.gives_back:
            return held
        counts = np.array([group.count for group in self.groups.all], np.int32)
        return np.tensordot(counts, self.ends[:, slots] - self.begins[:, slots], 1).astype(np.int32)

    def remove(self, slot: int) -> Request:
        """Free the slot. The request it held gets its output tokens and loses its slot; its pages are the caller's."""
        request = self.requests[slot]
        assert request is not None
        request.output_token_ids = self.output_tokens(slot).tolist()
        request.slot = -1
        self.requests[slot] = None
        self.generation[slot] += 1
        self._stop_sets.pop(slot, None)
        self._forget_pages(slot)
        for count in self._counts:
            count[slot] = 0
        self._free.append(slot)
        return request

    def clear(self, slot: int) -> None:
        """Let a slot hold nothing: no tokens, and no pages, which are the caller's. Nothing is computed for it."""
        self._forget_pages(slot)
        for count in self._counts:
            count[slot] = 0

    def _forget_pages(self, slot: int) -> None:
        end = self.num_pages[slot] if self.groups.num_tables == 1 else self.ends[:, slot].max()
        self.tables(slot)[:, :end] = NULL_PAGE

    def check_integrity(self) -> None:
        """Assert that every slot is either free and empty, or used by a request that knows it."""
        used = {slot for slot in self._own if self.requests[slot] is not None}
        assert sorted(self._free + list(used)) == list(self._own)
        for slot in self._own:
            request = self.requests[slot]
            self._check_pages(slot)
            if request is None:
                assert self.num_tokens[slot] == self.num_computed[slot] == self.num_pages[slot] == 0
                assert self.num_pending[slot] == 0
            else:
                assert request.slot == slot
                assert self.num_pending[slot] >= 0
                total = self.num_tokens[slot] + self.num_pending[slot]
                assert 0 <= self.num_computed[slot] <= total <= self.max_total[slot]
        assert set(self._stop_sets) & set(self._own) == {slot for slot in used if self.many_stops[slot]}

    def _check_pages(self, slot: int) -> None:
        for index, group in enumerate(self.groups.all):
            begin, end = self.begins[index, slot], self.ends[index, slot]
            tables = self.tables(slot)[group.first : group.first + group.count]
            assert not tables[:, :begin].any(), "a page was not forgotten"
            assert tables[:, begin:end].all(), "a request holds the null page"
            assert not tables[:, end:].any(), "a request has a page that it does not hold"
            if self.requests[slot] is not None:
                # The next token to compute, whatever is under way before it, must find what it sees.
                assert begin <= self.groups.begin(group, int(self.num_computed[slot]))
