"""Spans of prompts, which no step may split: a token's keys and values depend on the later ones of its span."""

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request
from jaxllm.requests.spans import span_after, whole_spans
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable


class WholeSpans:
    """Gives prompts tokens of a step such that each ends before a span or after it.

    A prompt at the beginning of a span needs as many tokens as that has, or gets none. The first prompt in order always
    gets what it needs: a step has room for the longest span, and a token of every other request. So each goes on when
    it is the first, if not before.
    """

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._gave_first = False
        """Whether the step before this one gave a later prompt what it needed, before the first one."""

    def needed(self, request: Request, computed: int) -> int:
        """The fewest tokens with which a request can go on after `computed` ones."""
        return 1 if request.media is None else span_after(request.media.spans, computed) - computed

    def cut(self, request: Request, computed: int, count: int) -> int:
        """How many of `count` tokens after `computed` ones a request can compute."""
        return count if request.media is None else whole_spans(request.media.spans, computed, count)

    def wanted(self, slots: Int32Array, counts: Int32Array) -> Int32Array:
        """What prompts ask for, int32 [n]: `counts`, or all of the span they are at."""
        return np.maximum(counts, self._needed(slots))

    def in_order(self, slots: Int32Array, wanted: Int32Array, budget: int) -> Int32Array:
        """What prompts get of `budget` if the first take all they can use, int32 [n]."""
        counts = np.zeros_like(wanted)
        self._fill(slots, counts, wanted, budget)
        return counts

    def divided(self, slots: Int32Array, shares: Int32Array, wanted: Int32Array, budget: int) -> Int32Array:
        """What prompts can use of their shares of `budget`, int32 [n], and of what others leave of theirs.

        The first prompt gets what it needs. In every other step it is the first one whose share is too small.
        """
        needed, counts = self._needed(slots), np.zeros_like(shares)
        short = np.flatnonzero((needed > shares) & (needed <= budget))
        if not len(short):
            first, self._gave_first = 0, False
        else:
            first = 0 if self._gave_first else int(short[0])
            self._gave_first = first > 0
        if needed[first] <= budget:
            counts[first] = needed[first]
        left = budget - int(counts.sum())
        left = self._fill(slots, counts, np.maximum(shares, counts), left)
        self._fill(slots, counts, np.maximum(wanted, counts), left)
        return counts

    def _needed(self, slots: Int32Array) -> Int32Array:
        table = self._table
        owners = [table.requests[slot] for slot in slots.tolist()]
        computed = table.num_computed[slots].tolist()
        pairs = zip(owners, computed, strict=True)
        return np.array([self.needed(each, start) for each, start in pairs if each is not None], np.int32)

    def _fill(self, slots: Int32Array, counts: Int32Array, wanted: Int32Array, left: int) -> int:
        """Raise `counts` towards `wanted`, in order, by `left` tokens at most; returns those that nobody can use."""
        table = self._table
        for row in np.flatnonzero(wanted > counts).tolist():
            request, slot = table.requests[slots[row]], slots[row]
            assert request is not None
            most = min(int(wanted[row]), int(counts[row]) + left)
            count = self.cut(request, int(table.num_computed[slot]), most)
            if count > counts[row]:
                left -= count - int(counts[row])
                counts[row] = count
        return left


def visible_ends(plan: StepPlan, positions: Int32Array) -> Int32Array:
    """The end of the positions that each token of a plan sees, int32 [tokens]; `positions` are its own."""
    ends, first = positions + 1, plan.num_decodes
    for row in range(plan.num_decodes, plan.num_rows):
        count, media = int(plan.num_new_tokens[row]), plan.requests[row].media
        if media is not None:
            own, start = ends[first : first + count], int(plan.starts[row])
            for begin, end in media.spans.tolist():
                # Spans are computed whole, but for what of them is in the cache.
                own[max(begin - start, 0) : max(end - start, 0)] = end
        first += count
    return ends
