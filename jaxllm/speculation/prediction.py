"""Drafts from a text that a request says its output will resemble, such as a file to change a few lines of."""

import numpy as np
import numpy.typing as npt

from jaxllm.requests.request import Request
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.drafter import Drafter, with_rows

Int32Array = npt.NDArray[np.int32]

LONGEST, SHORTEST = 5, 2
"""Last tokens of an output that must be found in a prediction for the output to follow it again."""


MOST_SEARCHED = 4096
"""Tokens of a prediction, from where the output left it, that are searched for the place where it returns."""


class PredictionDrafter:
    """Follows the predictions of requests that have one, and asks another drafter where that leads nowhere."""

    def __init__(self, others: Drafter) -> None:
        self._others = others
        self._followed: dict[Request, _Followed] = {}

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """See `Drafter.propose`."""
        counts, ids = self._others.propose(table, slots, limits)
        found: dict[int, Int32Array] = {}
        for row, slot in enumerate(slots.tolist()):
            request = table.requests[slot]
            if request is not None and request.params.predicted_token_ids:
                drafts = self._follow(request).drafts(table.output_tokens(slot), int(limits[row]))
                # Where others go on for longer than the prediction, and begin as it does, they are as good.
                if len(drafts) and (len(drafts) >= counts[row] or drafts[0] != ids[counts[:row].sum()]):
                    found[row] = drafts
        return with_rows(counts, ids, found)

    def follows(self, table: RequestTable, slot: int) -> bool:
        """Whether the request in a slot has a prediction that its output follows, as far as that is known."""
        request = table.requests[slot]
        if request is None or not request.params.predicted_token_ids:
            return False
        return len(self._follow(request).drafts(table.output_tokens(slot), 1)) > 0

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._followed.pop(request, None)
        self._others.forget(request)

    def _follow(self, request: Request) -> "_Followed":
        if request not in self._followed:
            self._followed[request] = _Followed(np.frombuffer(request.params.predicted_token_ids or b"", np.int32))
        return self._followed[request]


class _Followed:
    """How far the output of a request has followed its prediction."""

    def __init__(self, predicted: Int32Array) -> None:
        self._predicted = predicted
        self._cursor = 0
        """The place in the prediction that the next token is expected to be at; -1: it is not known."""
        self._left = 0
        """The last such place that was known."""
        self._seen = 0

    def drafts(self, output: Int32Array, limit: int) -> Int32Array:
        """What is expected to follow `output`, int32 [n]: up to `limit` tokens."""
        new = output[self._seen :]
        self._seen = len(output)
        expected = self._predicted[self._cursor : self._cursor + len(new)] if self._cursor >= 0 else new[:0]
        if np.array_equal(new, expected):
            self._cursor += len(new)
        else:
            self._left = max(self._left, self._cursor)
            self._cursor = self._find(output)
        return self._predicted[self._cursor : self._cursor + limit] if self._cursor >= 0 else new[:0]

    def _find(self, output: Int32Array) -> int:
        """The first place, from where the output left, that is after the longest of its last tokens; -1 for none.

        The search is bounded: a prediction that matches nearly everywhere must not hold up the steps of others.
        """
        first = max(0, self._left - LONGEST)
        predicted = self._predicted[first : first + MOST_SEARCHED]
        ends = np.flatnonzero(predicted[:-1] == output[-1]) + 1
        best = -1
        for count in range(1, min(LONGEST, len(output)) + 1):
            ends = ends[ends >= count]
            ends = ends[predicted[ends - count] == output[-count]]
            if not len(ends):
                break
            if count >= SHORTEST:
                later = ends[ends + first >= self._left]
                best = first + int(later[0] if len(later) else ends[-1])
        return best
