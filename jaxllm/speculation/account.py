"""What steps tell of guesses: which were right, how many there were, and what checking them takes."""

import numpy as np
import numpy.typing as npt

from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.acceptance_rates import AcceptanceRates
from jaxllm.speculation.statistics import DraftCounts
from jaxllm.speculation.step_clock import StepClock
from jaxllm.speculation.step_costs import StepCosts

Int32Array = npt.NDArray[np.int32]

MOST_UNHEARD = 4
"""Steps after a guess until its token is there: those under way, and one that its request may have to leave out."""


class DraftAccount:
    """Learns from each step that is collected, with drafts or without.

    Where a step does not check a guess, the first guess for each request is compared with its next token all the same.
    """

    def __init__(
        self, table: RequestTable, costs: StepCosts, drafting_costs: StepCosts | None, *, misses_count: bool
    ) -> None:
        """`drafting_costs` are those of steps that make drafts; None: no step does, and all count for `costs`.

        With `misses_count` a request for which there is no guess begins to repeat itself again: see `interrupt`.
        """
        num_slots = len(table.requests)
        self._table, self._misses_count = table, misses_count
        self._costs, self._drafting_costs = costs, drafting_costs
        self._guesses = np.zeros(num_slots, np.int32)
        self._guessed_at = np.full(num_slots, -1, np.int32)  # the places in the requests that these are for
        self._unheard = 0
        """Steps that may still show whether a guess was right."""
        self._clock = StepClock()
        self.rates = AcceptanceRates(num_slots)
        """How likely guesses for each slot are right."""
        self.counts = DraftCounts()
        """Drafts since the engine started."""

    @property
    def gap_seconds(self) -> float:
        """How long the device waits for the host after a step that the next one has to wait for."""
        return self._clock.gap_seconds

    def begin(self, plan: StepPlan) -> None:
        """A step begins, and with it the requests that it admits."""
        self._clock.begin(plan)
        for request in plan.admitted:
            self._guessed_at[request.slot] = -1
            self.rates.begin(request.slot)

    def expect(self, slots: Int32Array, guesses: Int32Array, places: Int32Array) -> None:
        """Compare these guesses at what comes in `places` of the requests in `slots`, int32 [n] each."""
        self._guesses[slots], self._guessed_at[slots] = guesses, places
        self._unheard = MOST_UNHEARD

    def expect_first(self, slots: Int32Array, counts: Int32Array, ids: Int32Array) -> None:
        """The same of the first of `counts` guesses for what follows the known tokens of each of `slots`, int32 [n].

        `ids` are the guesses, slot after slot. Nothing is expected of slots without any.
        """
        self._guessed_at[slots] = -1
        has_any = counts > 0
        if self._misses_count:
            self.rates.interrupt(slots[~has_any])
        guessed = slots[has_any]
        self.expect(guessed, ids[(np.cumsum(counts) - counts)[has_any]], self._table.num_tokens[guessed])

    def learns_only_time(self, plan: StepPlan) -> bool:
        """Whether a step without drafts has nothing to tell of guesses, as while nobody makes any; see `pass_by`."""
        return plan.num_drafts is None and not self._unheard

    def pass_by(self, plan: StepPlan) -> None:
        """`end` of such a step."""
        self._observe_time(plan)

    def end(
        self, plan: StepPlan, live: npt.NDArray[np.bool_], token_ids: Int32Array, counts: Int32Array | None
    ) -> npt.NDArray[np.intp]:
        """A step has ended, and the rows in `live` (bool [n]) have tokens of it. Returns which of them had drafts.

        `token_ids` has `counts` tokens for each row, int32 [n]; None: one each. What is forced of them is in the plan.
        """
        num_drafts = plan.num_drafts
        self._observe_time(plan)
        self._unheard = max(0, self._unheard - 1)
        firsts = np.arange(plan.num_rows) if counts is None else np.cumsum(counts) - counts
        told = np.flatnonzero(live & (self._guessed_at[plan.slots] == known_ends(plan)))
        if num_drafts is not None:
            told = told[num_drafts[told] == 0]
        if len(told):
            slots = plan.slots[told]
            hits = (token_ids[firsts[told]] == self._guesses[slots]).astype(np.int32)
            self.rates.count(slots, hits, np.ones_like(hits))
        if num_drafts is None or counts is None:
            return np.zeros(0, np.intp)
        drafted = np.flatnonzero((num_drafts > 0) & live)
        asked, accepted = num_drafts[drafted], counts[drafted] - 1
        if plan.num_forced is not None:
            accepted = accepted - plan.num_forced[drafted]
        self.rates.count(plan.slots[drafted], accepted, np.minimum(accepted + 1, asked))
        self.counts = self.counts.plus(DraftCounts.of_step(asked, accepted))
        return drafted

    def _observe_time(self, plan: StepPlan) -> None:
        """Learn from a step with decodes only how long one of so many tokens takes."""
        seconds = self._clock.end(plan)
        own = plan.num_new_tokens if plan.num_drafts is None else plan.num_new_tokens - plan.num_drafts
        if seconds is None or len(own) != int(own.sum()):
            return
        if self._drafting_costs is None or not (plan.is_followed or plan.has_drafts):
            self._costs.observe(plan.most_tokens, seconds)
        elif plan.draft_steps:
            self._drafting_costs.observe(plan.most_tokens, seconds)


def known_ends(plan: StepPlan) -> Int32Array:
    """Where the rows of a step end, int32 [n], without drafts."""
    ends: Int32Array = plan.starts + plan.num_new_tokens
    return ends if plan.num_drafts is None else ends - plan.num_drafts
