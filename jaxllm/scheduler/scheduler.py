"""The scheduler: one token budget per step, shared by prompts and decodes alike.

There is no prefill phase and no decode phase: every running request has `num_tokens` known and `num_computed`
computed tokens, and each step lets it catch up. Decodes (one token short) go first, then prompts in order, then new
requests. A request that cannot get a page makes the last in order give up its own, which is computed again later.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial

import numpy as np

from jaxllm.config import MAMBA_BLOCK_SIZE
from jaxllm.errors import CapacityError, RequestError, quoted
from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.kv.tiers.loads import HOLD_REASON
from jaxllm.requests.request import FinishReason, Request
from jaxllm.scheduler.admission import Admission
from jaxllm.scheduler.drafts import Drafts, DraftSource
from jaxllm.scheduler.fair_queue import FairQueue
from jaxllm.scheduler.fairness import Fairness
from jaxllm.scheduler.groups import SequenceGroups
from jaxllm.scheduler.holds import HoldReason, Holds
from jaxllm.scheduler.in_flight import InFlightSteps
from jaxllm.scheduler.owner_admission import OwnerAdmission
from jaxllm.scheduler.pages import PageTables
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.queue import Policy, RunningOrder, order_key
from jaxllm.scheduler.room import Room
from jaxllm.scheduler.running_rows import RunningRows
from jaxllm.scheduler.shares import DEBT_STEPS, Shares
from jaxllm.scheduler.snapshots import StateSnapshots
from jaxllm.scheduler.spans import WholeSpans
from jaxllm.scheduler.table import RequestTable


class Scheduler:
    """Decides which requests run in each step, and keeps their tokens and pages.

    With several owners slots, pages and the budget are shared between them (`Fairness`, `Shares`); priorities come
    before that. With one owner nothing of it is felt.

    Every request finishes: the order of running requests is total and never changes, the first is never made to yield
    and can always get what it needs, and who was given least comes next. `num_preemptions` counts preemptions.

    Raises `CapacityError` when a request of `max_model_len` tokens does not fit the pages.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        pages: KVManager,
        policy: Policy = "fcfs",
        long_prefill_token_threshold: int = 0,
        mamba_block_size: int = MAMBA_BLOCK_SIZE,
        stages: int = 1,
        keeps_spans: bool = False,
        table: RequestTable | None = None,
    ) -> None:
        """`mamba_block_size` is that of `CacheOptions`: tokens between two snapshots, where `pages` has some.

        With several `stages` (pipeline parallel) as many steps are to be under way, each with its part of the decodes:
        no request runs whose last token the host does not know yet.

        With `keeps_spans` no step splits a span, see `WholeSpans`.

        `table` has `max_num_seqs` slots; it is made if it is not given.
        """
        usable, needed = pages.num_pages - 1, pages.groups.most_pages(max_model_len)
        if needed > usable:
            raise CapacityError(
                f"max_model_len={max_model_len} needs {needed} pages of {pages.block_size} tokens, but only {usable} "
                f"are available; lower max_model_len to {pages.groups.longest(usable)} or less"
            )
        self.table = table or RequestTable(
            max_num_seqs,
            max_model_len,
            pages.pages_for(max_model_len),
            by_priority=policy == "priority",
            groups=pages.groups,
        )
        self.num_preemptions = 0
        self._budget = max_num_batched_tokens
        # Where prompts of several owners are divided only after their pages are found, none asks for more than a step.
        max_chunk = min(long_prefill_token_threshold or max_num_batched_tokens, max_num_batched_tokens)
        self._pages = pages
        self._shares = Shares(most_debt=DEBT_STEPS * max_num_batched_tokens)
        self._waiting: FairQueue[Request] = FairQueue(self._shares)
        self._running = RunningOrder(order_key(policy))
        spans = WholeSpans(self.table) if keeps_spans else None
        self._fairness = Fairness(self.table, self._shares, max_num_batched_tokens, spans)
        self._room = Room(self.table, self._running, self._shares, pages, max_num_batched_tokens)
        self._holds = Holds()
        self._requests: dict[str, Request] = {}
        self._page_tables = PageTables(self.table, pages)
        self._groups = SequenceGroups(self.table, pages)
        self._snapshots = (
            None if pages.snapshots is None else StateSnapshots(self.table, pages, pages.snapshots, mamba_block_size)
        )
        self._admission = Admission(
            self.table,
            self._waiting,
            self._running,
            self._shares,
            self._groups,
            self._room,
            pages,
            budget=max_num_batched_tokens,
            max_chunk=max_chunk,
            snapshots=self._snapshots,
            spans=spans,
            hold=partial(self.hold, reason=HOLD_REASON),
        )
        self._owner_admission = OwnerAdmission(
            self.table, self._waiting, self._shares, self._fairness, self._admission, max_num_batched_tokens
        )
        self._rows = RunningRows(
            self.table,
            self._running,
            self._shares,
            self._groups,
            budget=max_num_batched_tokens,
            max_chunk=max_chunk,
            stages=stages,
            snapshots=self._snapshots,
            spans=spans,
        )
        self._drafts: Drafts | None = None
        self._arrivals = 0
        self._under_way = InFlightSteps(self.table, self._groups)

    def use_drafts(self, source: DraftSource) -> None:
        """Let decodes bring drafts from this source."""
        self._drafts = Drafts(self.table, self._page_tables, self._snapshots, source)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting) + len(self._holds)

    @property
    def num_held(self) -> int:
        """Number of waiting requests that may not run yet."""
        return len(self._holds)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self._running)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    @property
    def waits_for_drafts(self) -> bool:
        """Whether a step under way must end before it is known what the next one can compute."""
        return self._drafts is not None and self._drafts.must_wait(self._under_way.plans)

    def unfinished_ids(self) -> set[str]:
        """Ids of the requests that wait or run."""
        return set(self._requests)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of this name. While it has a slot, its output is `table.output_tokens(slot)`."""
        return self._requests.get(request_id)

    def unfinished(self) -> list[Request]:
        """The requests that wait or run, in no particular order."""
        return list(self._requests.values())

    def hold_reasons(self, request: Request) -> frozenset[HoldReason]:
        """Why a request may not run; empty if it may."""
        return self._holds.reasons(request)

    @property
    def all_requests_held(self) -> bool:
        """Whether all requests there are wait for their `release`."""
        return len(self._holds) == len(self._requests)

    def add(self, request: Request, hold_reasons: Collection[HoldReason] = ()) -> None:
        """Queue a request, whose prompt must have 1 to `max_model_len - 1` tokens.

        It may run once each of its `hold_reasons` is released. Raises `RequestError` when an unfinished request has the
        same id.
        """
        assert 0 < request.num_tokens < self.table.max_model_len
        if request.request_id in self._requests:
            raise RequestError(
                f"request_id={quoted(request.request_id)} is in use by an unfinished request", "request_id"
            )
        share = self._shares.enter(request.owner)
        for each in request.sequences:
            each.share = share
            if each.arrival < 0:
                each.arrival = self._arrivals
                self._arrivals += 1
        self._requests[request.request_id] = request
        if hold_reasons:
            self._holds.add(request, hold_reasons)
        else:
            self._wait(request)

    def _wait(self, request: Request) -> None:
        priority = request.priority if self.table.by_priority else 0
        self._waiting.push(request, request.share, priority, request.arrival)

    def withdraw(self) -> Request | None:
        """Take back the request that would be next to run, for another scheduler; None if it has run, or none waits."""
        request = self._waiting.peek()
        if request is None or request.num_preemptions:
            return None
        self._waiting.remove(request)
        self._shares.leave(request.share)
        return self._requests.pop(request.request_id)

    def hold(self, request: Request, reason: HoldReason) -> None:
        """Keep a waiting request from running until `release` is called with this reason, too."""
        assert request.slot < 0, "a running request is preempted before it is held"
        if request not in self._holds:
            self._waiting.remove(request)
        self._holds.add(request, (reason,))

    def release(self, request: Request, reason: HoldReason) -> None:
        """Let a request run, at the place that its arrival gives it, if this was the last reason to hold it.

        Harmless for a request that has ended, and for a reason that is released already.
        """
        if self._holds.release(request, reason):
            self._wait(request)

    def finish(self, request_id: str, reason: FinishReason, stop_reason: int | str | None = None) -> Request | None:
        """End a request, waiting or running, for a reason seen outside. Returns it, or None when there is none.

        It may happen between `schedule` and `update`: the step's token for this request is then dropped.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.slot >= 0:
            self._leave(request)
        elif not self._holds.remove(request):
            self._waiting.remove(request)
        self._shares.leave(request.share)
        request.finish_reason, request.stop_reason = reason, stop_reason
        return request

    def schedule(self) -> StepPlan | None:
        """Plan the next step. Its tokens count as computed from here on.

        It may be called again before `update` has taken the tokens of earlier plans: those are in
        `RequestTable.num_pending`, and only the device knows them. None when nothing can run, or nothing before the
        next `update`.
        """
        if self._drafts is not None and self.waits_for_drafts:
            return None
        contended = self._shares.contended
        made_room = self._make_room() if contended and self._room.blocked is not None else []
        preempted: list[Request] = []
        while (picked := self._rows.pick()) is None or not self._page_tables.grow(picked[0], picked[1]):
            if self.table.num_pending[self._running.slots].any() or (
                self._page_tables.gives_back and self._under_way.plans
            ):
                return None  # Preempting now would lose tokens on their way, and the next update may free pages.
            preempted.append(self._preempt())
        slots, counts, num_decodes = picked
        admitted: list[Request] = []
        admitted_counts: list[int] = []
        if not preempted and self._waiting:
            budget = self._budget
            if contended:
                admitted, admitted_counts, budget = self._owner_admission.admit(slots, num_decodes)
                slots, counts = self._fairness.divide(
                    slots, counts, num_decodes, budget - num_decodes - sum(admitted_counts)
                )
            left = budget - int(counts.sum()) - sum(admitted_counts)
            more, more_counts = self._admission.admit(left)
            admitted, admitted_counts = admitted + more, admitted_counts + more_counts
            if admitted:
                firsts = [each.slot for each in admitted if each.group is None or each.group.leader is each]
                slots = np.concatenate([slots, np.array(firsts, np.int32)])
                counts = np.concatenate([counts, np.array(admitted_counts, np.int32)])
        elif contended and num_decodes < len(slots):
            slots, counts = self._fairness.divide(slots, counts, num_decodes, self._budget - num_decodes)
        if not len(slots):
            return None
        plan = self._plan(slots, counts, num_decodes, admitted, made_room + preempted)
        if self._drafts is not None:
            self._drafts.add_to(plan)
        return plan

    def _make_room(self) -> list[Request]:
        """Let running requests of owners with more than their share make way for the first that waits."""
        leaving = self._room.leaving(self._waiting.peek())
        for each in leaving:
            # Its tokens on their way are dropped, and sampled again when it returns.
            self._send_back(each)
        return leaving

    def _preempt(self) -> Request:
        """Send the last running request back to its place in the queue."""
        request = self._room.yields() if self._shares.contended else self._running.last
        if request.group is not None:
            request = request.group.leader
        self._send_back(request)
        return request

    def _send_back(self, request: Request) -> None:
        self._leave(request)
        request.num_preemptions += 1
        if request.group is not None:
            request.group.rewind()
        self.num_preemptions += 1
        if request.hold_again:
            self._holds.add(request, request.hold_again)
        else:
            self._wait(request)

    def _plan(
        self,
        slots: Int32Array,
        counts: Int32Array,
        num_decodes: int,
        admitted: list[Request],
        preempted: list[Request],
    ) -> StepPlan:
        """Fill in the plan and count its tokens as computed."""
        table = self.table
        starts = table.num_computed[slots]
        ends = starts + counts
        samples = ends == table.num_tokens[slots] + table.num_pending[slots]
        if admitted:
            # A prompt that was cached up to its last token is a decode like any other.
            last_only = samples & (counts == 1)
            num_decodes = int(np.count_nonzero(last_only))
            order = np.argsort(~last_only, kind="stable")
            slots, counts, starts, ends, samples = (array[order] for array in (slots, counts, starts, ends, samples))
        num_tokens = int(counts.sum())
        self._owner_admission.on_plan()
        if self._shares.contended:
            self._shares.charge_rows(table.owners[slots[:num_decodes]])
            self._room.earn(num_tokens)
        table.num_computed[slots] = ends
        table.num_pending[slots[samples]] += 1
        plan = StepPlan(
            slots=slots,
            num_new_tokens=counts,
            starts=starts,
            samples=samples,
            num_decodes=num_decodes,
            num_tokens=num_tokens,
            requests=self._running.requests if slots is self._running.slots else self._owners(slots),
            admitted=admitted,
            preempted=preempted,
            generations=table.generation[slots],
        )
        if self._drafts is not None:
            self._drafts.take_over(plan)
        if self._groups.running:
            self._groups.tell(plan)
        if self._snapshots is not None:
            self._snapshots.scheduled(plan, ends)
        self._under_way.plans.append(plan)
        return plan

    def _owners(self, slots: Int32Array) -> list[Request]:
        owners = self.table.requests
        return [owner for slot in slots.tolist() if (owner := owners[slot]) is not None]

    def update(self, plan: StepPlan, tokens: Int32Array, counts: Int32Array | None = None) -> list[Request]:
        """Take the tokens of a step, row after row. Returns the requests that end with it.

        `counts`, int32 [n], says how many each of the plan's rows has: the sampled one, and those that follow it
        without being sampled; None: one each. `tokens` is int32 [sum of counts]. For those after a token that ends the
        request none is taken, see `StepPlan.num_taken`.

        Steps are taken in the order in which they were scheduled; some may be left out when no request is unfinished.
        Tokens of rows that do not sample are ignored, and so are rows whose request has left its slot since
        `schedule`; see `StepPlan.samples`. Output tokens stay in the table while a request runs, and are in
        `Request.output_token_ids` when it finishes or is preempted.
        """
        live, ended = self._under_way.take(plan, tokens, counts)
        self._page_tables.publish(plan, live)
        if self._snapshots is not None:
            self._snapshots.updated(plan, live, self._under_way.plans)
        self._page_tables.give_back(plan, live)
        return [self._end(slot) for slot in ended.tolist()]

    def _end(self, slot: int) -> Request:
        """Finish the request in this slot because of its last token."""
        request = self.table.requests[slot]
        assert request is not None
        token = self.table.stop_of(slot)
        request.finish_reason = "length" if token is None else "stop"
        is_eos = not request.params.ignore_eos and token in request.eos_token_ids
        request.stop_reason = None if is_eos else token
        self._leave(request)
        self._shares.leave(request.share)
        del self._requests[request.request_id]
        return request

    def _leave(self, request: Request) -> None:
        """Take a running request's pages and slot, with all of its group."""
        if request.group is not None:
            self._groups.close(request.group)
        self._shares.running[request.share] -= len(request.sequences)
        for each in request.sequences:
            self._running.remove(each)
            if self._page_tables.gives_back or self._snapshots is not None or self._pages.tier is not None:
                collected = self._under_way.num_collected(each.slot)
                self._pages.leaves(each, collected)
                if self._snapshots is not None:
                    self._snapshots.left(each, collected)
            self._pages.release(self.table.pages(each.slot))
            self.table.remove(each.slot)

    def preempt_all(self) -> None:
        """Send all running requests back to their places in the queue; their tokens are computed again.

        No step may be under way. What their pages were called is forgotten.
        """
        while len(self._running):
            self._preempt()
        for request in self._requests.values():
            for each in request.sequences:
                each.page_hashes.clear()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while a request runs."""
        return self._pages.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Assert the invariants of slots, pages, queue and running order. Slow: for tests."""
        self.table.check_integrity()
        self._running.check_integrity()
        running, waiting = set(self._running), set(self._waiting) | set(self._holds)
        assert not set(self._holds) & set(self._waiting)
        assert running <= {request for request in self.table.requests if request is not None}
        assert len(running) == self.table.num_slots - self.table.num_free_slots
        assert all(each.slot < 0 for request in waiting for each in request.sequences)
        running_requests = {each if each.group is None else each.group.leader for each in running}
        assert running_requests | waiting == set(self._requests.values())
        assert running == {each for request in running_requests for each in request.sequences}
        assert not running & waiting
        self._check_shares()
        held: Iterable[Int32Array] = [self.table.pages(request.slot) for request in self._running]
        self._pages.check_integrity(held)
        if self._snapshots is not None:
            self._snapshots.check_integrity()

    def _check_shares(self) -> None:
        shares = [request.share for request in self._running]
        self._shares.check_integrity(
            np.bincount(np.array(shares, np.int64), minlength=len(self._shares.served)),
            {request.share for request in self._waiting},
            Counter(request.share for request in self._requests.values()),
        )
