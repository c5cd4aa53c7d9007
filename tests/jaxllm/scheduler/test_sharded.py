"""Several data shards after one scheduler: where requests go, and that a step of all is one plan."""

from collections import deque
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import RequestError
from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.sharded import ShardedScheduler
from jaxllm.speculation.device_drafts import unknown_drafts

SLOTS, PAGE, BUDGET, LONGEST = 3, 4, 12, 32


class Drafts:
    """One or two drafts for each request, which only the device knows."""

    lookahead = 2

    def can_follow(self, plan: StepPlan) -> bool:
        return True

    def propose(self, slots: Int32Array, room: Int32Array, num_tokens: int) -> tuple[Int32Array, Int32Array] | None:
        counts = np.clip(room, 0, 1 + slots % 2).astype(np.int32)
        if not counts.any() or num_tokens + counts.sum() > BUDGET:
            return None
        return counts, unknown_drafts(counts)


class Run:
    """A scheduler of data shards, whose every token is 5, and its steps under way."""

    def __init__(self, shards: int, num_pages: int = 40, *, drafts: bool = False) -> None:
        self.pages = [KVManager(num_pages, PAGE) for _ in range(shards)]
        self.scheduler = ShardedScheduler(
            self.pages, max_num_seqs=SLOTS, max_num_batched_tokens=BUDGET, max_model_len=LONGEST
        )
        if drafts:
            self.scheduler.use_drafts(Drafts())
        self.ended: list[Request] = []
        self._under_way: deque[StepPlan] = deque()
        self._names = count()

    def add(self, prompt: list[int], max_tokens: int = 4) -> Request:
        request = Request(
            request_id=str(next(self._names)),
            prompt_token_ids=np.array(prompt, np.int32),
            params=SamplingParams(max_tokens=max_tokens),
        )
        self.scheduler.add(request)
        return request

    def shard_of(self, request: Request) -> int:
        return next(
            index for index, part in enumerate(self.scheduler.parts) if request.request_id in part.unfinished_ids()
        )

    def start(self) -> bool:
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        if plan is None:
            return False
        self._check(plan)
        self._under_way.append(plan)
        return True

    def _check(self, plan: StepPlan) -> None:
        parts = [(shard, part) for shard, part in enumerate(plan.parts) if part is not None]
        assert sum(part.num_rows for _, part in parts) == plan.num_rows == len(plan.requests)
        assert plan.most_tokens == max(part.num_tokens for _, part in parts) <= BUDGET
        for shard, part in parts:
            assert np.all(part.slots // SLOTS == shard)
            assert np.shares_memory(part.samples, plan.samples)
            assert np.shares_memory(part.starts, plan.starts)
        owners = self.scheduler.table.requests
        assert plan.requests == [owners[slot] for slot in plan.slots.tolist()]
        rows = [row for row in range(plan.num_rows) if plan.num_new_tokens[row] > 1]
        assert set(rows) <= set(plan.prompt_rows)

    def step(self, ahead: int = 0) -> None:
        while len(self._under_way) <= ahead and self.start():
            pass
        if self._under_way:
            self._take(self._under_way.popleft())
            self.scheduler.check_integrity()

    def _take(self, plan: StepPlan) -> None:
        """Take the tokens of a step. Of its drafts the first ones are right, in some steps all and in others none."""
        table, counts = self.scheduler.table, None
        drafts = np.zeros(plan.num_rows, np.int32) if plan.num_drafts is None else plan.num_drafts
        if plan.num_drafts is not None:
            counts = (1 + (plan.starts + plan.slots) % (1 + drafts)).astype(np.int32)
        rows = plan.samples & (plan.generations == table.generation[plan.slots])
        # Steps before this one are taken: now the host knows where its rows are.
        ends = plan.starts + plan.num_new_tokens - drafts
        assert np.array_equal(ends[rows], table.num_tokens[plan.slots[rows]])
        num_tokens = plan.num_rows if counts is None else counts.sum()
        self.ended += self.scheduler.update(plan, np.full(num_tokens, 5, np.int32), counts)


@given(
    shards=st.integers(1, 4),
    lengths=st.lists(st.tuples(st.integers(1, 27), st.integers(1, 9)), min_size=1, max_size=24),
    num_pages=st.integers(9, 30),
    ahead=st.integers(0, 1),
    together=st.integers(1, 12),
    drafts=st.booleans(),
)
def test_every_request_ends_with_its_tokens(
    shards: int, lengths: list[tuple[int, int]], num_pages: int, ahead: int, together: int, drafts: bool
) -> None:
    run, requests = Run(shards, num_pages, drafts=drafts), []
    for index, (length, max_tokens) in enumerate(lengths):
        requests.append(run.add([index % 3] * length, max_tokens))
        if index % together == 0:
            run.step(ahead)
    for _ in range(60 * len(lengths)):
        if run.scheduler.has_unfinished:
            run.step(ahead)
    assert not run.scheduler.has_unfinished
    assert set(run.ended) == set(requests)
    for request, (length, max_tokens) in zip(requests, lengths, strict=True):
        assert request.output_token_ids == [5] * min(max_tokens, LONGEST - length)
    assert [request.arrival for request in requests] == list(range(len(requests))), "the same as with one shard"
    assert all(pages.num_free_pages == num_pages - 1 for pages in run.pages)


def test_requests_are_spread() -> None:
    run = Run(3)
    assert [run.shard_of(run.add([index])) for index in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_request_goes_where_its_prompt_is_cached() -> None:
    run, prompt = Run(2), list(range(9))
    for own in ([50, 51], prompt):
        run.add(own)
    while run.scheduler.has_unfinished:
        run.step()
    again = run.add([*prompt, 60])
    assert run.shard_of(again) == 1
    run.step()
    assert again.num_cached_tokens == 8
    # But not where much more is to be done.
    for index in range(8):
        run.add([*prompt, 70 + index])
    assert min(part.num_waiting + part.num_running for part in run.scheduler.parts) >= 2


def test_those_that_wait_move_to_a_shard_with_room() -> None:
    run = Run(2)
    long = [run.add([index] * 3, max_tokens=20 if index % 2 == 0 else 1) for index in range(8)]
    assert [run.shard_of(request) for request in long] == [0, 1] * 4
    for _ in range(4):
        run.step()
    # The fourth of the first shard found no slot there; those of the second have ended.
    assert run.shard_of(long[6]) == 1
    assert [each.slot >= 0 for each in (long[0], long[2], long[4], long[6])] == [True] * 4


def test_names_are_unique_over_all_shards() -> None:
    run = Run(2)
    first = run.add([1])
    twin = Request(request_id=first.request_id, prompt_token_ids=first.prompt_token_ids, params=first.params)
    with pytest.raises(RequestError, match="in use"):
        run.scheduler.add(twin)


def test_a_request_is_aborted_between_a_step_and_its_tokens() -> None:
    run = Run(2)
    requests = [run.add([index] * 5) for index in range(4)]
    run.start()
    assert run.scheduler.finish(requests[1].request_id, "abort") is requests[1]
    while run.scheduler.has_unfinished:
        run.step()
    assert len(run.ended) == 3
    assert run.scheduler.reset_prefix_cache()
