"""One scheduler for several data shards: each has requests, slots, pages and a budget of its own.

A data shard is a `Scheduler`, so that all it promises holds for every one: preemption, groups and fairness stay within
a shard. Here it is decided which shard gets a request, and their plans become one step's.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from jaxllm.errors import RequestError, quoted
from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.kv.shards import ShardedPages
from jaxllm.requests.request import FinishReason, Request
from jaxllm.scheduler.drafts import DraftSource
from jaxllm.scheduler.holds import HoldReason
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.table import RequestTable

WAITING_WEIGHT = 4
"""A request that waits counts as much as so many that run, as in vLLM's balancing of engines."""


class ShardedScheduler:
    """Schedules the requests of all data shards, whose pages are `shards`; see `Scheduler` for what it does.

    The slots of the shards lie one after the other in `table`. A request goes to the shard that has most of its prompt
    cached, of those that are not much busier than the one with the least to do. Those that wait for a shard move to
    another one that has nothing to do. `options` are those of `Scheduler`, for each shard.
    """

    def __init__(self, shards: Sequence[KVManager], *, max_num_seqs: int, max_model_len: int, **options: Any) -> None:
        first = shards[0]
        self._pages = tuple(shards)
        self.table = RequestTable(
            max_num_seqs * len(shards),
            max_model_len,
            first.pages_for(max_model_len),
            by_priority=options.get("policy") == "priority",
            groups=first.groups,
        )
        slots = (range(begin, begin + max_num_seqs) for begin in range(0, max_num_seqs * len(shards), max_num_seqs))
        self.parts = tuple(
            Scheduler(
                pages=pages,
                table=self.table.part(own),
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                **options,
            )
            for pages, own in zip(shards, slots, strict=True)
        )
        self._part_of: dict[str, Scheduler] = {}
        self._arrivals = 0

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return sum(part.num_waiting for part in self.parts)

    @property
    def num_held(self) -> int:
        """Number of waiting requests that may not run yet."""
        return sum(part.num_held for part in self.parts)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return sum(part.num_running for part in self.parts)

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far."""
        return sum(part.num_preemptions for part in self.parts)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._part_of)

    @property
    def all_requests_held(self) -> bool:
        """Whether all requests there are wait for their `release`."""
        return all(part.all_requests_held for part in self.parts)

    def unfinished_ids(self) -> set[str]:
        """Ids of the requests that wait or run."""
        return set(self._part_of)

    def get(self, request_id: str) -> Request | None:
        """See `Scheduler.get`."""
        part = self._part_of.get(request_id)
        return None if part is None else part.get(request_id)

    def unfinished(self) -> list[Request]:
        """See `Scheduler.unfinished`."""
        return [request for part in self.parts for request in part.unfinished()]

    def hold_reasons(self, request: Request) -> frozenset[HoldReason]:
        """See `Scheduler.hold_reasons`."""
        return self._part_of[request.request_id].hold_reasons(request)

    def add(self, request: Request, hold_reasons: Collection[HoldReason] = ()) -> None:
        """See `Scheduler.add`."""
        if request.request_id in self._part_of:
            raise RequestError(
                f"request_id={quoted(request.request_id)} is in use by an unfinished request", "request_id"
            )
        # Arrivals are counted here: they say who is first, and with which seed one samples who gave none.
        for each in request.sequences:
            each.arrival = self._arrivals
            self._arrivals += 1
        part = self._place(request)
        part.add(request, hold_reasons)
        self._part_of[request.request_id] = part

    def _place(self, request: Request) -> Scheduler:
        """The shard that a new request goes to."""
        loads = [_load(part) for part in self.parts]
        least = min(loads)
        not_busy = [index for index, load in enumerate(loads) if load <= least + least // 2 + WAITING_WEIGHT]
        cached = {index: self._pages[index].num_cached_tokens(request) for index in not_busy}
        return self.parts[min(not_busy, key=lambda index: (-cached[index], loads[index], index))]

    def use_drafts(self, source: DraftSource) -> None:
        """See `Scheduler.use_drafts`."""
        for part in self.parts:
            part.use_drafts(source)

    def hold(self, request: Request, reason: HoldReason) -> None:
        """See `Scheduler.hold`."""
        self._part_of[request.request_id].hold(request, reason)

    def release(self, request: Request, reason: HoldReason) -> None:
        """See `Scheduler.release`."""
        part = self._part_of.get(request.request_id)
        if part is not None:
            part.release(request, reason)

    def finish(self, request_id: str, reason: FinishReason, stop_reason: int | str | None = None) -> Request | None:
        """See `Scheduler.finish`."""
        part = self._part_of.pop(request_id, None)
        return None if part is None else part.finish(request_id, reason, stop_reason)

    def schedule(self) -> StepPlan | None:
        """See `Scheduler.schedule`: a step of all shards that can do something."""
        if any(part.waits_for_drafts for part in self.parts):
            return None
        self._level()
        plans = tuple(part.schedule() for part in self.parts)
        return merged(plans) if any(plan is not None for plan in plans) else None

    def _level(self) -> None:
        """Let requests that wait for a shard run in another, where nobody waits."""
        for part in self.parts:
            if part.num_waiting or part.table.num_free_slots == 0:
                continue
            busiest = max(self.parts, key=_load)
            if busiest.num_waiting - busiest.num_held and busiest.num_running > part.num_running:
                request = busiest.withdraw()
                if request is not None:
                    part.add(request)
                    self._part_of[request.request_id] = part

    def update(self, plan: StepPlan, tokens: Int32Array, counts: Int32Array | None = None) -> list[Request]:
        """See `Scheduler.update`."""
        finished: list[Request] = []
        taken, grouped = [], []
        ends = np.arange(1, plan.num_rows + 1) if counts is None else np.cumsum(counts)
        for scheduler, part, rows in self._taking(plan):
            part.num_forced = None if plan.num_forced is None else plan.num_forced[rows]
            begin, end = (int(ends[rows.start - 1]) if rows.start else 0), int(ends[rows.stop - 1])
            finished += scheduler.update(part, tokens[begin:end], None if counts is None else counts[rows])
            taken += [] if part.num_taken is None else [part.num_taken]
            grouped += [] if part.grouped is None else [part.grouped + rows.start]
        plan.num_taken = np.concatenate(taken) if taken else None
        plan.grouped = np.concatenate(grouped) if grouped else None
        for request in finished:
            del self._part_of[request.request_id]
        return finished

    def _taking(self, plan: StepPlan) -> Iterator[tuple[Scheduler, StepPlan, slice]]:
        """The shards that take part in a step, their plans, and which rows of it are theirs."""
        there = [(scheduler, part) for scheduler, part in zip(self.parts, plan.parts, strict=True) if part is not None]
        return ((*pair, rows) for pair, rows in zip(there, _rows(plan), strict=True))

    def preempt_all(self) -> None:
        """See `Scheduler.preempt_all`."""
        for part in self.parts:
            part.preempt_all()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while a request runs."""
        if any(pages.num_held_pages for pages in self._pages):
            return False
        for part in self.parts:
            part.reset_prefix_cache()
        return True

    def check_integrity(self) -> None:
        """Assert the invariants of every shard. Slow: for tests."""
        for part in self.parts:
            part.check_integrity()
        assert {name: part for part in self.parts for name in part.unfinished_ids()} == self._part_of


def make_sharded(shards: Sequence[KVManager], **options: Any) -> tuple[ShardedPages, ShardedScheduler]:
    """The pages of all shards, as one looks at them from outside, and their scheduler; see there for `options`."""
    return ShardedPages(shards), ShardedScheduler(shards, **options)


def _load(part: Scheduler) -> int:
    return WAITING_WEIGHT * part.num_waiting + part.num_running


def _rows(plan: StepPlan) -> Iterator[slice]:
    """The rows of each shard that has some."""
    first = 0
    for part in plan.parts:
        if part is not None:
            yield slice(first, first + part.num_rows)
            first += part.num_rows


def merged(parts: tuple[StepPlan | None, ...]) -> StepPlan:
    """The plan of a step of all shards; a part's `samples`, `generations` and `starts` become views of the whole's."""
    there = [part for part in parts if part is not None]
    plan = StepPlan(
        slots=np.concatenate([part.slots for part in there]),
        num_new_tokens=np.concatenate([part.num_new_tokens for part in there]),
        starts=np.concatenate([part.starts for part in there]),
        samples=np.concatenate([part.samples for part in there]),
        num_decodes=sum(part.num_decodes for part in there),
        num_tokens=sum(part.num_tokens for part in there),
        requests=[request for part in there for request in part.requests],
        admitted=[request for part in there for request in part.admitted],
        preempted=[request for part in there for request in part.preempted],
        generations=np.concatenate([part.generations for part in there]),
        moved=[slot for part in there for slot in part.moved],
        parts=parts,
    )
    if any(part.num_drafts is not None for part in there):
        none = np.zeros(0, np.int32)
        counts = [np.zeros(part.num_rows, np.int32) if part.num_drafts is None else part.num_drafts for part in there]
        plan.num_drafts = np.concatenate(counts)
        plan.draft_ids = np.concatenate([none if part.draft_ids is None else part.draft_ids for part in there])
    for part, rows in zip(there, _rows(plan), strict=True):
        part.samples, part.generations, part.starts = plan.samples[rows], plan.generations[rows], plan.starts[rows]
    return plan
