"""Steps whose tokens are still to come, and the taking of these tokens."""

from collections import deque

import numpy as np
import numpy.typing as npt

from jaxllm.kv.pages import Int32Array
from jaxllm.scheduler.groups import SequenceGroups
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable


class InFlightSteps:
    """The steps that were scheduled and not taken yet, in order."""

    def __init__(self, table: RequestTable, groups: SequenceGroups) -> None:
        self._table, self._groups = table, groups
        self.plans: deque[StepPlan] = deque()

    def num_collected(self, slot: int) -> int:
        """Tokens of the request in a slot that were computed by steps which are not under way any more."""
        table = self._table
        generation, collected = table.generation[slot], int(table.num_computed[slot])
        for plan in self.plans:
            for row in np.flatnonzero((plan.slots == slot) & (plan.generations == generation)).tolist():
                collected = min(collected, int(plan.starts[row]))
        return collected

    def take(
        self, plan: StepPlan, tokens: Int32Array, counts: Int32Array | None
    ) -> tuple[npt.NDArray[np.bool_], Int32Array]:
        """Append the tokens of a step to their requests, as `Scheduler.update` says.

        Returns which rows' requests are still in their slots, bool [n], and the slots whose requests end.
        """
        while self.plans.popleft() is not plan:
            pass
        table = self._table
        live = table.generation[plan.slots] == plan.generations
        plan.samples &= live
        slots = plan.slots[plan.samples]
        table.num_pending[slots] -= 1
        if self._groups.running:
            plan.grouped = np.flatnonzero(plan.samples & table.in_group[plan.slots])
            plan.samples[plan.grouped] = False
            slots = plan.slots[plan.samples]
        if counts is not None:
            return live, self._take_several(plan, tokens, counts)
        return live, slots[table.append(slots, tokens[plan.samples])]

    def _take_several(self, plan: StepPlan, tokens: Int32Array, counts: Int32Array) -> Int32Array:
        """Append the tokens of rows that may have several, a place at a time. Returns the slots whose requests end."""
        plan.num_taken = np.zeros_like(counts)
        firsts = np.cumsum(counts) - counts
        rows = np.flatnonzero(plan.samples)
        ended: list[Int32Array] = []
        if plan.num_drafts is not None:
            self._take_back_drafts(plan, counts)
        for place in range(int(counts.max())):
            rows = rows[counts[rows] > place]
            ends = self._table.append(plan.slots[rows], tokens[firsts[rows] + place])
            plan.num_taken[rows] += 1
            ended.append(plan.slots[rows[ends]])
            rows = rows[~ends]
        forced = plan.num_taken > 1
        if plan.num_drafts is not None:
            forced &= plan.num_drafts == 0
        for row in np.flatnonzero(forced).tolist():
            self._void_later(plan, row)
        return np.concatenate(ended)

    def _take_back_drafts(self, plan: StepPlan, counts: Int32Array) -> None:
        """Count only those drafts as computed that were accepted."""
        assert plan.num_drafts is not None
        table = self._table
        rows = np.flatnonzero(plan.num_drafts)
        accepted = counts[rows] - 1
        if plan.num_forced is not None:
            accepted = accepted - plan.num_forced[rows]
        # Nobody has sampled for a row whose tokens were known meanwhile.
        accepted = np.where(plan.samples[rows], accepted, 0)
        plan.num_new_tokens[rows] -= plan.num_drafts[rows] - accepted
        live = plan.samples[rows]
        slots, drafted, accepted = plan.slots[rows[live]], plan.num_drafts[rows[live]], accepted[live]
        table.num_pending[slots] -= drafted
        table.num_computed[slots] -= drafted - accepted
        if table.groups.has_states:
            table.num_replayed[slots] = accepted
        self._move_back(slots, drafted - accepted)

    def _move_back(self, slots: Int32Array, rejected: Int32Array) -> None:
        """So many drafts of these slots, int32 [n] each, were not accepted: the step that counted on them is told."""
        table, is_followed = self._table, np.zeros(len(slots), np.bool_)
        # The host is unsure of one step at a time, so one at most has counted on drafts.
        later = next((plan for plan in self.plans if plan.num_unknown is not None), None)
        if later is not None and later.num_unknown is not None:
            places = np.full(len(table.num_unknown), -1, np.int32)
            places[slots] = np.arange(len(slots))
            counted = (later.num_unknown > 0) & (later.generations == table.generation[later.slots])
            rows = np.flatnonzero(counted & (places[later.slots] >= 0))
            which = places[later.slots[rows]]
            later.starts[rows] -= rejected[which]
            is_followed[which] = True
        # For those that are followed it says how many drafts that later step has.
        table.num_unknown[slots[~is_followed]] = 0

    def _void_later(self, plan: StepPlan, row: int) -> None:
        """Take back what steps under way sample for this row's request: its next tokens are known."""
        table, slot = self._table, int(plan.slots[row])
        end = int(plan.starts[row] + plan.num_new_tokens[row])
        table.num_pending[slot] = table.num_unknown[slot] = 0
        # The first token that was taken is the one they went on with, but what they sampled after it is not.
        table.num_computed[slot] = min(int(table.num_computed[slot]), end + 1)
        for later in self.plans:
            same = (later.slots == slot) & (later.generations == plan.generations[row])
            # Keys and values are written again, but a state that went on with another token is lost.
            assert not (table.groups.has_states and (same & (later.starts > end)).any()), "too many steps ahead"
            later.samples[same] = False
            later.generations[same & (later.starts > end)] = -1
