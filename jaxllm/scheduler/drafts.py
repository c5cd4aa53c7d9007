"""Drafts of a step: guesses at what follows the known tokens of its decodes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.scheduler.pages import PageTables, ranges
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.snapshots import StateSnapshots
from jaxllm.scheduler.table import RequestTable


class DraftSource(Protocol):
    """Proposes drafts for the decodes of a step."""

    def propose(self, slots: Int32Array, room: Int32Array, num_tokens: int) -> tuple[Int32Array, Int32Array] | None:
        """Drafts for some of `slots` (int32 [n]): how many each has, int32 [n], and these, slot after slot.

        They follow the tokens that are counted as computed. Slot i can use `room[i]` of them. The step has `num_tokens`
        tokens without them, and must stay within the budget. None: no drafts.
        """

    def can_follow(self, plan: StepPlan) -> bool:
        """Whether a step may be scheduled before it is known how many drafts of this one, which has some, are accepted.

        It then counts on all of them, and the device takes back those that are not.
        """

    @property
    def lookahead(self) -> int:
        """Places after the tokens of a step that the device writes to while it makes drafts."""


class Drafts:
    """Puts the drafts of one source into plans, with the pages that they need."""

    def __init__(
        self, table: RequestTable, page_tables: PageTables, snapshots: StateSnapshots | None, source: DraftSource
    ) -> None:
        self._table, self._page_tables, self._snapshots, self._source = table, page_tables, snapshots, source

    def must_wait(self, plans: Sequence[StepPlan]) -> bool:
        """Whether steps under way must end before it is known what the next one can compute.

        One whose requests have all ended does not count: when no request is left, nobody waits for its end.
        """
        generation = self._table.generation
        open_ones = [
            plan for plan in plans if plan.num_drafts is not None and (generation[plan.slots] == plan.generations).any()
        ]
        # The device takes back what it knows of, which is of the last step.
        return bool(open_ones) and (open_ones[0] is not plans[-1] or not self._source.can_follow(open_ones[0]))

    def take_over(self, plan: StepPlan) -> None:
        """Say what a step must know of the drafts of its rows' last steps."""
        table, slots = self._table, plan.slots
        unknown = table.num_unknown[slots]
        if unknown.any():
            plan.num_unknown = unknown
            table.num_unknown[slots] = 0
        if table.groups.has_states:
            plan.num_replayed = table.num_replayed[slots]
            table.num_replayed[slots] = 0

    def add_to(self, plan: StepPlan) -> None:
        """Let decodes of a step bring drafts, and have pages for what the device writes while it makes others."""
        if plan.num_decodes:
            self._propose(plan)
        if self._source.lookahead:
            self._reserve(plan)

    def _propose(self, plan: StepPlan) -> None:
        """Let decodes compute guesses at what follows them as well, after those that do not."""
        table, decodes = self._table, plan.slots[: plan.num_decodes]
        room = table.max_total[decodes] - plan.starts[: plan.num_decodes] - 2
        if self._snapshots is not None:
            room = self._snapshots.cut_drafts(decodes, room)
        proposed = self._source.propose(decodes, room, plan.num_tokens)
        if proposed is None:
            return
        num_drafts, draft_ids = proposed
        rows = np.flatnonzero(num_drafts).astype(np.int32)
        if not self._page_tables.grow(decodes[rows], num_drafts[rows]):
            return
        counts = np.zeros(plan.num_rows, np.int32)
        counts[: plan.num_decodes] = num_drafts
        places, columns = ranges(decodes[rows], plan.starts[rows] + 1, plan.starts[rows] + 1 + num_drafts[rows])
        table.token_ids[places, columns] = draft_ids
        order = np.concatenate([np.flatnonzero(num_drafts == 0), rows, np.arange(plan.num_decodes, plan.num_rows)])
        plan.put_in_order(order)
        plan.num_new_tokens = plan.num_new_tokens + counts[order]
        plan.num_drafts, plan.draft_ids = counts[order], draft_ids
        plan.num_decodes -= len(rows)
        plan.num_tokens += len(draft_ids)
        drafted, counted = plan.slots[plan.num_drafts > 0], plan.num_drafts[plan.num_drafts > 0]
        table.num_computed[drafted] += counted
        table.num_pending[drafted] += counted
        table.num_unknown[drafted] = counted

    def _reserve(self, plan: StepPlan) -> None:
        """Have pages for what the device writes after the tokens of rows that sample, if there are some."""
        slots, counts = plan.slots[plan.samples], np.full(int(plan.samples.sum()), self._source.lookahead, np.int32)
        room = self._table.max_total[slots] - self._table.num_computed[slots]
        # Without these pages some drafts are worse, and nothing else is.
        self._page_tables.grow(slots, np.clip(room, 0, counts).astype(np.int32))
