"""Speculative decoding: what the engine does with guesses at the next tokens of its requests."""

import logging

import numpy as np
import numpy.typing as npt

from jaxllm.engine.features.constrained import ConstrainedDecoding
from jaxllm.engine.features.faults import Faults, is_of_one_request
from jaxllm.engine.features.feature import StepFeature
from jaxllm.executor.runner import Dispatched, Runner, StepResult
from jaxllm.requests.outputs import EngineOutput, RequestDrafts
from jaxllm.requests.request import Request
from jaxllm.scheduler.pages import ranges
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler
from jaxllm.speculation.account import DraftAccount, known_ends
from jaxllm.speculation.amounts import StepLoad, chances_of, choose_amounts
from jaxllm.speculation.device_drafts import DeviceDrafts, DraftPace, unknown_drafts
from jaxllm.speculation.drafter import with_rows
from jaxllm.speculation.prediction import PredictionDrafter
from jaxllm.speculation.statistics import DraftCounts
from jaxllm.speculation.step_costs import StepCosts

logger = logging.getLogger(__name__)

Int32Array = npt.NDArray[np.int32]


class Speculation(StepFeature):
    """Drafts for the requests that decode, and the account of those that were right.

    A step with drafts says only when it ends how many tokens a request has. Where the device makes the drafts, it knows
    that before the host: the next step is scheduled while this one runs, with drafts that the host has not seen. Else
    it is scheduled when this one has ended. A step without any is followed by the next at once, as ever. While the last
    token of a request is on its way, its drafts follow a guess at that, too.
    """

    def __init__(
        self,
        faults: Faults,
        scheduler: Scheduler | ShardedScheduler,
        runner: Runner,
        drafter: PredictionDrafter,
        costs: StepCosts,
        drafting_costs: StepCosts | None,
        constrained: ConstrainedDecoding,
        *,
        max_drafts: int,
        most_requests: int | None = None,
        metrics: str = "none",
        on_device: DeviceDrafts | None = None,
    ) -> None:
        """`constrained` has the requests whose tokens are chosen after the step.

        Steps cost `costs`, and `drafting_costs` where the device makes drafts in them; None: it never does. A request
        has up to `max_drafts` in a step, and none while more than `most_requests` decode. `metrics` says what outputs
        tell of the drafts of their requests: "none", "summary" or "detailed". Where the device makes drafts, they are
        left in `on_device` for the `drafter`.
        """
        super().__init__(faults)
        self._scheduler, self._runner, self._drafter, self._costs = scheduler, runner, drafter, costs
        self._constrained, self._max_drafts, self._most_requests = constrained, max_drafts, most_requests
        table = scheduler.table
        num_slots = len(table.requests)
        self._limits = np.zeros(num_slots, np.int32)
        self._generations = np.full(num_slots, -1, np.int64)
        self._is_penalised = np.zeros(num_slots, np.bool_)
        self._is_predicted = np.zeros(num_slots, np.bool_)
        self._needs_host = np.zeros(num_slots, np.bool_)  # to go on after drafts
        self._under_way: StepPlan | None = None
        """The last step, if it is under way and makes drafts."""
        self._metrics = metrics
        self._on_device, self._pace = on_device, DraftPace()
        self._runs_ahead = on_device is not None and not table.groups.has_states
        # The device leaves out guesses that would not be used.
        self._account = DraftAccount(table, costs, drafting_costs, misses_count=on_device is None)
        self._drafting_costs = drafting_costs
        scheduler.use_drafts(self)

    @property
    def counts(self) -> DraftCounts:
        """Drafts since the engine started."""
        return self._account.counts

    @property
    def lookahead(self) -> int:
        """See `DraftSource`."""
        return 0 if self._on_device is None or self._pace.is_resting else self._max_drafts

    def can_follow(self, plan: StepPlan) -> bool:
        """See `DraftSource`."""
        if not self._runs_ahead or self._runner.any_bias_changes or plan.num_drafts is None:
            return False
        return not self._needs_host[plan.slots[plan.num_drafts > 0]].any()

    def handles(self, request: Request) -> bool:
        """Whether drafts may be made for the request."""
        params = request.params
        return params.speculative_tokens != 0 and params.beam_search is None and params.logprob_token_ids is None

    def on_ended(self, request: Request) -> None:
        """Forget a request."""
        self._drafter.forget(request)

    def on_scheduled(self, plan: StepPlan) -> None:
        """Note which slots may have drafts."""
        self._account.begin(plan)
        for request in plan.admitted:
            slot = request.slot
            may_draft = request in self.requests
            if request in self._constrained.requests:
                may_draft &= self._constrained.takes_drafts(request)
            self._generations[slot] = self._scheduler.table.generation[slot]
            asked = request.params.speculative_tokens
            most = self._max_drafts if asked is None else min(asked, self._max_drafts)
            self._limits[slot] = most if may_draft else 0
            self._is_penalised[slot] = request.params.uses_penalties
            self._is_predicted[slot] = request.params.predicted_token_ids is not None
            is_limited = request in self._constrained.requests
            self._needs_host[slot] = is_limited or self._is_penalised[slot] or self._is_predicted[slot]
        if self._on_device is not None:
            self._ask_device(plan)
            self._under_way = plan if plan.draft_steps else None

    def before_collect(self, step: Dispatched) -> None:
        """Say which drafts a step had that the device had made while the host did not wait for them."""
        plan = step.plan
        if self._on_device is not None and plan.num_drafts is not None and plan.draft_ids is not None:
            self._on_device.fill_in(np.repeat(plan.slots, plan.num_drafts), plan.draft_ids)

    def _ask_device(self, plan: StepPlan) -> None:
        """Let the device make drafts of what follows this step, if some request of it can use them."""
        assert self._on_device is not None
        table = self._scheduler.table
        own = plan.num_new_tokens if plan.num_drafts is None else plan.num_new_tokens - plan.num_drafts
        if self._pace.rests(begins=bool(plan.admitted), reads_prompt=bool((own > 1).any())):
            self._on_device.miss(table, plan.slots, own)
            for part in _parts_of(plan):
                part.is_followed = False
            return
        slots = plan.slots[plan.samples]
        if self._most_requests is not None and len(slots) > self._most_requests:
            return
        may_draft = (self._generations[slots] == table.generation[slots]) & self._on_device.has_read(table, slots)
        most = int((self._limits[slots] * may_draft).max(initial=0))
        if most and self._pace.wants_drafts():
            for part in _parts_of(plan):
                part.draft_steps = most

    def propose(self, slots: Int32Array, room: Int32Array, num_tokens: int) -> tuple[Int32Array, Int32Array] | None:
        """See `DraftSource`. Where a drafter fails there are no drafts, and nobody loses more than time."""
        if not self.requests or (self._most_requests is not None and len(slots) > self._most_requests):
            return None
        if self._on_device is not None and self._pace.is_resting and not self._needs_host[slots].any():
            return None
        try:
            return self._propose(slots, room, num_tokens)
        except BaseException as error:
            if not is_of_one_request(error):
                raise
            logger.exception("requests that run now get no more drafts: %s failed", type(self._drafter).__name__)
            self._limits[:] = 0
            return None

    def _propose(self, slots: Int32Array, room: Int32Array, num_tokens: int) -> tuple[Int32Array, Int32Array] | None:
        coming = self._coming(slots)
        limits, ahead = self._limits_of(slots, room, coming)
        rows = np.flatnonzero(limits)
        if not len(rows):
            return None
        ahead, drafted, coming = ahead[rows], slots[rows], coming[rows]
        counts, ids = self._guesses(drafted, limits[rows], ahead, coming)
        # The first guess where a token is on its way is at that one.
        first = np.cumsum(counts) - counts
        ids = np.delete(ids, first[(ahead > 0) & (counts > 0)])
        counts = np.maximum(counts - ahead, 0).astype(np.int32)
        load, costs = self._load(len(slots), num_tokens)
        most = int(counts.max(initial=0))
        chances = chances_of(self._account.rates.of(drafted, most + 1), ahead, most)
        kept = choose_amounts(counts, chances, costs, load)
        if self._on_device is not None and counts.any():
            self._pace.note(used=bool(kept.any()), knows_plain=load.plain_seconds is not None)
        if not kept.any():
            return None
        first = np.cumsum(counts) - counts
        is_kept = np.arange(len(ids)) - np.repeat(first, counts) < np.repeat(kept, counts)
        num_drafts = np.zeros(len(slots), np.int32)
        num_drafts[rows] = kept
        return num_drafts, ids[is_kept].astype(np.int32)

    def _load(self, num_rows: int, num_tokens: int) -> tuple[StepLoad, StepCosts]:
        """What a step of so many rows and tokens costs without drafts, and what costs apply to one with some."""
        gap_seconds = 0.0 if self._runs_ahead else self._account.gap_seconds
        load = StepLoad(num_rows, num_tokens, self._runner.buckets[-1].tokens, gap_seconds)
        if self._drafting_costs is None:
            return load, self._costs
        if not self._costs.knows(num_tokens):
            return load, self._drafting_costs
        return load._replace(plain_seconds=float(self._costs.of(np.array([num_tokens]))[0])), self._drafting_costs

    def _guesses(
        self, slots: Int32Array, limits: Int32Array, ahead: Int32Array, coming: Int32Array
    ) -> tuple[Int32Array, Int32Array]:
        """What is guessed to follow the tokens of `slots`, as `Drafter.propose` says it; see `_limits_of`."""
        is_seen, unseen = coming == 0, np.minimum(limits, coming)
        if not is_seen.any():
            return unseen, unknown_drafts(unseen)
        asked = np.where(is_seen, limits + ahead, 0).astype(np.int32)
        counts, ids = self._drafter.propose(self._scheduler.table, slots, asked)
        self._account.expect_first(slots[is_seen], counts[is_seen], ids)
        others = {row: unknown_drafts(unseen[row : row + 1]) for row in np.flatnonzero(~is_seen).tolist()}
        return with_rows(counts, ids, others)

    def _coming(self, slots: Int32Array) -> Int32Array:
        """How many drafts the step under way makes for each of `slots`, int32 [n]: they follow what it accepts."""
        plan, table = self._under_way, self._scheduler.table
        made = np.zeros(len(self._limits), np.int32)
        if plan is not None:
            rows = plan.samples & (plan.generations == table.generation[plan.slots])
            if plan.constrained is not None:
                rows &= ~plan.constrained
            assert self._on_device is not None
            own = plan.slots[rows]
            made[own] = np.where(self._on_device.has_read(table, own), plan.draft_steps, 0)
            # What a request has predicted comes before guesses.
            for slot in slots[self._is_predicted[slots] & (made[slots] > 0)].tolist():
                if self._drafter.follows(table, slot):
                    made[slot] = 0
        return made[slots]

    def _limits_of(self, slots: Int32Array, room: Int32Array, coming: Int32Array) -> tuple[Int32Array, Int32Array]:
        """How many drafts each of `slots` may have, and how many of its tokens before them are only guessed.

        `coming` are made while the step before is under way, whose tokens they follow. All are int32 [n].
        """
        table = self._scheduler.table
        limits = np.where(self._generations[slots] == table.generation[slots], self._limits[slots], 0)
        limits = np.clip(room, 0, limits)
        # Of the tokens that count as computed the last may come of the step before this one.
        ahead = np.where(coming > 0, 0, table.num_computed[slots] - table.num_tokens[slots])
        limits[ahead > 1] = 0
        if self._runner.any_bias_changes:
            num_outputs = table.num_computed[slots] - table.num_prompt_tokens[slots]
            for index in np.flatnonzero(limits).tolist():
                limits[index] = min(
                    limits[index], self._runner.num_unchanged(int(slots[index]), int(num_outputs[index]))
                )
        return limits, ahead

    def on_collected(self, step: Dispatched, result: StepResult) -> None:
        """See which guesses were right."""
        plan, counts = step.plan, result.counts
        if self._under_way is plan:
            self._under_way = None
        if result.drafts is None and self._account.learns_only_time(plan):
            self._account.pass_by(plan)
            return
        live = plan.samples & (self._scheduler.table.generation[plan.slots] == plan.generations)
        drafted = self._account.end(plan, live, result.token_ids, counts)
        if self._on_device is not None and result.drafts is not None:
            # Of rows whose tokens are chosen after the step, the device did not know them.
            own = live if plan.constrained is None else live & ~plan.constrained
            slots = plan.slots[own]
            places = known_ends(plan)[own] + (1 if counts is None else counts[own])
            self._on_device.take(self._scheduler.table, slots, places, result.drafts[own])
            self._account.expect(slots, result.drafts[own, 0], places)
        penalised = drafted[self._is_penalised[plan.slots[drafted]]]
        if len(penalised) and counts is not None:
            firsts = np.cumsum(counts, dtype=np.int32) - counts
            places, own = ranges(plan.slots[penalised], firsts[penalised], firsts[penalised] + counts[penalised])
            self._runner.count_tokens(places, result.token_ids[own])

    def on_outputs(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """Tell of the drafts of each request, if that is asked for."""
        if self._metrics == "none":
            return
        asked, counts = plan.num_drafts, result.counts
        for row, output in zip(np.flatnonzero(plan.samples).tolist(), outputs, strict=True):
            steps = []
            if asked is not None and counts is not None and asked[row]:
                forced = 0 if plan.num_forced is None else int(plan.num_forced[row])
                steps.append((int(asked[row]), int(counts[row]) - 1 - forced))
            if (steps or output.scheduled_time is not None) and plan.requests[row] in self.requests:
                output.drafts = RequestDrafts(self._max_drafts, self._metrics == "detailed", steps)


def _parts_of(plan: StepPlan) -> list[StepPlan]:
    """A plan, and those of its shards that do something."""
    return [part for part in (plan, *plan.parts) if part is not None]
