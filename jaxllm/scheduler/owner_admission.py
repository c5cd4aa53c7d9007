"""Which waiting requests come first where there are several owners, and how long the step is then."""

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request
from jaxllm.scheduler.admission import Admission
from jaxllm.scheduler.fair_queue import FairQueue
from jaxllm.scheduler.fairness import Fairness
from jaxllm.scheduler.shares import Shares
from jaxllm.scheduler.table import RequestTable

STEPS_BETWEEN_SHORT = 1
"""At least so many steps of the whole budget come between two short ones."""


class OwnerAdmission:
    """Admits requests of owners that compute no prompt, before those that do take the budget."""

    def __init__(
        self,
        table: RequestTable,
        waiting: FairQueue[Request],
        shares: Shares,
        fairness: Fairness,
        admission: Admission,
        budget: int,
    ) -> None:
        """`budget` is of one step, in tokens."""
        self._table, self._waiting, self._shares = table, waiting, shares
        self._fairness, self._admission, self._budget = fairness, admission, budget
        self._num_steps, self._last_short = 0, -STEPS_BETWEEN_SHORT - 1

    def on_plan(self) -> None:
        """One more step has been planned, with or without requests of theirs."""
        self._num_steps += 1

    def admit(self, slots: Int32Array, num_decodes: int) -> tuple[list[Request], list[int], int]:
        """Admit waiting requests of owners whose prompts are not among those under way: they get their share first.

        `slots` are those of the step so far, decodes first. Returns the requests, their tokens, and the tokens of the
        step. It is a short one if all of them are of owners that had nothing, and get their first token by it: so that
        they need not wait for a whole step's tokens of others. Of few steps in a row is one short, so that many owners
        do not slow one another down.
        """
        head = self._waiting.peek()
        assert head is not None
        is_new = self._shares.running == 0
        reserved = self._fairness.reserve(slots[num_decodes:], num_decodes, head)
        # Where new ones come first, only they come: others would take what they leave.
        new = {index for index in self._shares.waiting if is_new[index]} if is_new[head.share] and len(slots) else None
        if num_decodes == len(slots) and new is None:
            reserved = 0
        admitted, counts = self._admission.admit(reserved, new) if reserved > 0 else ([], [])
        firsts = [each for each in admitted if each.group is None or each.group.leader is each]
        may_be_short = bool(firsts) and self._num_steps - self._last_short > STEPS_BETWEEN_SHORT
        is_short = may_be_short and all(
            is_new[each.share] and int(self._table.behind(np.array([each.slot]))[0]) == count
            for each, count in zip(firsts, counts, strict=True)
        )
        if is_short:
            self._last_short = self._num_steps
        return admitted, counts, self._fairness.short(num_decodes + sum(counts)) if is_short else self._budget
