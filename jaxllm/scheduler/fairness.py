"""How the tokens of a step are divided, where there are several owners.

Nothing here is called while all requests have one owner.
"""

import numpy as np
import numpy.typing as npt

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request
from jaxllm.scheduler.shares import Shares
from jaxllm.scheduler.spans import WholeSpans
from jaxllm.scheduler.table import RequestTable

SHORT_STEPS = 8
"""So many short steps are one of the whole budget."""

LONG_BUDGET = 256
"""A step of fewer tokens is short anyway."""

Floats = npt.NDArray[np.float64]


class Fairness:
    """Divides the tokens of steps of `budget` between prompts, by the owners' weights."""

    def __init__(self, table: RequestTable, shares: Shares, budget: int, spans: WholeSpans | None = None) -> None:
        self._table, self._shares, self._budget, self._spans = table, shares, budget, spans

    def reserve(self, prefills: Int32Array, num_decodes: int, head: Request) -> int:
        """Tokens of a step to keep for waiting requests of owners that have none among `prefills`, slots."""
        budget = self._budget - num_decodes
        if not len(prefills):
            return budget
        if self._table.priorities[prefills].min() < head.priority and self._table.by_priority:
            return 0
        weights = self._shares.weights
        computing = np.unique(self._table.owners[prefills])
        others = [index for index in self._shares.waiting if index not in computing]
        waiting = float(weights[others].sum())
        share = -(-budget * waiting // (waiting + float(weights[computing].sum())))
        if self._spans is None:
            return min(int(share), budget - 1)  # the first that runs goes on in every step
        first = self._table.requests[prefills[0]]
        assert first is not None
        needed = self._spans.needed(first, int(self._table.num_computed[prefills[0]]))
        return min(max(int(share), self._spans.needed(head, 0)), budget - needed)

    def short(self, num_tokens: int) -> int:
        """The tokens of a step that brings the first ones of owners who had nothing, `num_tokens` with all decodes.

        It ends early, and the other prompts get what is left of it: one at least, and no more than a part of a step.
        """
        if self._budget < LONG_BUDGET:
            return self._budget
        return min(max(num_tokens + 1, self._budget // SHORT_STEPS), self._budget)

    def divide(
        self, slots: Int32Array, wanted: Int32Array, num_decodes: int, left: int
    ) -> tuple[Int32Array, Int32Array]:
        """The rows of a step and their tokens, where prompts want more than the tokens that are `left` for them.

        slots, wanted: int32 [n], in order, decodes first.
        """
        counts, prompts = wanted.copy(), slots[num_decodes:]
        counts[num_decodes:] = self._divide(prompts, wanted[num_decodes:], left)
        if self._spans is not None and len(prompts):
            counts[num_decodes:] = self._spans.divided(prompts, counts[num_decodes:], wanted[num_decodes:], left)
        rows = counts > 0
        return slots[rows], counts[rows]

    def _divide(self, slots: Int32Array, wanted: Int32Array, budget: int) -> Int32Array:
        """Divide tokens between prompts, int32 [n]: equally by owners' weights, in order for each owner.

        What one owner does not want the others get.
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
