"""The scheduler's rules one by one. Long random runs are in test_scheduler_runs.py."""

from typing import Any

import numpy as np
import pytest

from jaxllm.errors import CapacityError, RequestError
from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler

TOKEN = 5


def scheduler_of(num_pages: int = 101, block_size: int = 4, caching: bool = False, **options: Any) -> Scheduler:
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 64}
    pages = KVManager(num_pages, block_size, enable_prefix_caching=caching)
    return Scheduler(pages=pages, **{**defaults, **options})


def request_of(name: str, prompt: int, priority: int = 0, seed: int | None = None, **params: Any) -> Request:
    seed = int.from_bytes(name.encode()) if seed is None else seed
    tokens = np.random.default_rng(seed).integers(10, 1000, prompt).astype(np.int32)
    options = {"max_tokens": None, **params}
    return Request(request_id=name, prompt_token_ids=tokens, params=SamplingParams(**options), priority=priority)


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.check_integrity()
    return plan


def step(scheduler: Scheduler, token: int = TOKEN) -> tuple[StepPlan, list[Request]]:
    plan = plan_of(scheduler)
    finished = scheduler.update(plan, np.full(plan.num_rows, token, np.int32))
    scheduler.check_integrity()
    return plan, finished


def rows(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    """Name, start, new tokens, samples."""
    columns = (plan.starts.tolist(), plan.num_new_tokens.tolist(), plan.samples.tolist())
    return [(request.request_id, *values) for request, *values in zip(plan.requests, *columns, strict=True)]


def test_nothing_to_do() -> None:
    scheduler = scheduler_of()
    assert scheduler.schedule() is None
    assert not scheduler.has_unfinished


def test_a_prompt_in_chunks_then_decodes() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=4)
    scheduler.add(request_of("a", 10, max_tokens=2))
    assert (scheduler.num_waiting, scheduler.num_running) == (1, 0)
    plans = [step(scheduler) for _ in range(4)]
    assert [rows(plan) for plan, _ in plans] == [
        [("a", 0, 4, False)],
        [("a", 4, 4, False)],
        [("a", 8, 2, True)],
        [("a", 10, 1, True)],
    ]
    assert [plan.num_decodes for plan, _ in plans] == [0, 0, 0, 1]
    assert [len(plan.admitted) for plan, _ in plans] == [1, 0, 0, 0]
    (request,) = plans[-1][1]
    assert (request.finish_reason, request.stop_reason, request.output_token_ids) == ("length", None, [TOKEN, TOKEN])
    assert scheduler.schedule() is None


def test_decodes_go_before_prompts_and_prompts_before_new_requests() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=8)
    scheduler.add(request_of("long", 20))
    scheduler.add(request_of("short", 3))
    assert rows(step(scheduler)[0]) == [("long", 0, 8, False)]
    assert rows(step(scheduler)[0]) == [("long", 8, 8, False)]
    assert rows(step(scheduler)[0]) == [("long", 16, 4, True), ("short", 0, 3, True)]
    scheduler.add(request_of("late", 30))
    plan, _ = step(scheduler)
    assert rows(plan) == [("long", 20, 1, True), ("short", 3, 1, True), ("late", 0, 6, False)]
    assert (plan.num_decodes, plan.num_tokens) == (2, 8)
    scheduler.add(request_of("last", 2))
    assert [name for name, *_ in rows(step(scheduler)[0])] == ["long", "short", "late"], "the budget is used up"


def test_long_prompts_are_bounded_by_the_threshold() -> None:
    scheduler = scheduler_of(long_prefill_token_threshold=5)
    for name in "ab":
        scheduler.add(request_of(name, 12))
    assert rows(step(scheduler)[0]) == [("a", 0, 5, False), ("b", 0, 5, False)]
    assert rows(step(scheduler)[0]) == [("a", 5, 5, False), ("b", 5, 5, False)]
    assert rows(step(scheduler)[0]) == [("a", 10, 2, True), ("b", 10, 2, True)]


def test_no_more_rows_than_sequences_or_tokens() -> None:
    for scheduler in (scheduler_of(max_num_seqs=2), scheduler_of(max_num_batched_tokens=2)):
        for name in "abcd":
            scheduler.add(request_of(name, 1))
        for _ in range(5):
            assert [name for name, *_ in rows(step(scheduler)[0])] == ["a", "b"]
        assert scheduler.num_waiting == 2


def test_admission_by_priority_then_arrival() -> None:
    scheduler = scheduler_of(policy="priority", max_num_seqs=3)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -1)):
        scheduler.add(request_of(name, 2, priority))
    plan, _ = step(scheduler)
    assert [request.request_id for request in plan.admitted] == ["d", "b", "a"]
    assert [name for name, *_ in rows(step(scheduler)[0])] == ["d", "b", "a"]


def test_fcfs_ignores_priority() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    scheduler.add(request_of("a", 2, priority=5))
    scheduler.add(request_of("b", 2, priority=-5))
    assert [request.request_id for request in plan_of(scheduler).admitted] == ["a"]


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "c"), ("priority", "b")])
def test_the_last_in_order_yields_its_pages(policy: Any, victim: str) -> None:
    # Three requests of equal length cross into a new page in the same step; 11 pages are not four for each.
    scheduler = scheduler_of(num_pages=12, policy=policy, max_model_len=40, max_num_batched_tokens=64)
    for name, priority in (("a", 1), ("b", 2), ("c", 1)):
        scheduler.add(request_of(name, 8, priority))
    for _ in range(5):
        step(scheduler)
    while not (plan := plan_of(scheduler)).preempted:
        scheduler.update(plan, np.full(plan.num_rows, TOKEN, np.int32))
    (request,) = plan.preempted
    assert request.request_id == victim
    assert request.output_token_ids == [TOKEN] * (request.num_tokens - 8)
    assert (request.slot, request.num_preemptions, scheduler.num_preemptions) == (-1, 1, 1)
    assert plan.admitted == []
    assert scheduler.num_waiting == 1
    scheduler.update(plan, np.full(plan.num_rows, TOKEN, np.int32))
    for name in "abc":
        if name != victim:
            scheduler.finish(name, "abort")
    known = request.num_tokens
    plan, _ = step(scheduler)
    assert plan.admitted == [request]
    assert rows(plan) == [(victim, 0, known, True)], "everything is computed again, and the next token sampled"
    assert scheduler.table.num_tokens[request.slot] == known + 1


def test_a_preempted_request_returns_before_later_ones() -> None:
    scheduler = scheduler_of(num_pages=7, max_model_len=24)
    scheduler.add(request_of("a", 8, max_tokens=16))
    scheduler.add(request_of("b", 8, max_tokens=16))
    while not scheduler.num_preemptions:
        step(scheduler)
    scheduler.add(request_of("c", 1, max_tokens=1))
    admitted: list[str] = []
    while scheduler.has_unfinished:
        admitted += [request.request_id for request in step(scheduler)[0].admitted]
    assert admitted == ["b", "c"]


def test_admission_leaves_a_page_for_each_running_request() -> None:
    scheduler = scheduler_of(num_pages=6, max_model_len=20)
    scheduler.add(request_of("a", 7))
    scheduler.add(request_of("b", 9))
    assert [request.request_id for request in step(scheduler)[0].admitted] == ["a"], "2 + 3 pages would leave none"
    scheduler.finish("a", "abort")
    assert [request.request_id for request in step(scheduler)[0].admitted] == ["b"]


def test_a_cached_prompt_is_a_decode_at_once() -> None:
    scheduler = scheduler_of(caching=True, max_num_batched_tokens=32)
    scheduler.add(request_of("a", 9, seed=1))
    step(scheduler)
    scheduler.add(request_of("b", 9, seed=2))
    scheduler.add(request_of("c", 9, seed=1))
    plan, _ = step(scheduler)
    assert rows(plan) == [("a", 9, 1, True), ("c", 8, 1, True), ("b", 0, 9, True)]
    assert plan.num_decodes == 2
    request = scheduler.get("c")
    assert request is not None
    assert request.num_cached_tokens == 8
    assert plan.slots.tolist() == [each.slot for each in plan.requests]


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    scheduler = scheduler_of(caching=True)
    scheduler.add(first := request_of("a", 6, max_tokens=7))
    while scheduler.has_unfinished:
        step(scheduler)
    turn = request_of("b", 1)
    turn.prompt_token_ids = np.array([*first.prompt_token_ids, *first.output_token_ids, 1, 2], np.int32)
    scheduler.add(turn)
    step(scheduler)
    assert turn.num_cached_tokens == 12, "the 13th token was sampled, never computed"


def test_generated_pages_keep_their_salt() -> None:
    scheduler = scheduler_of(caching=True)
    first = request_of("a", 1, max_tokens=9)
    first.cache_salt = "private"
    scheduler.add(first)
    while scheduler.has_unfinished:
        step(scheduler)
    tokens = np.array([*first.prompt_token_ids, *first.output_token_ids], np.int32)
    for salt, expected in ((None, 0), ("private", 8)):
        request = request_of(str(salt), 1)
        request.prompt_token_ids, request.cache_salt = tokens, salt
        scheduler.add(request)
        step(scheduler)
        assert request.num_cached_tokens == expected


def test_a_resumed_request_finds_its_own_pages() -> None:
    scheduler = scheduler_of(num_pages=7, max_model_len=24, caching=True)
    scheduler.add(request_of("a", 8, max_tokens=6))
    scheduler.add(request_of("b", 8, max_tokens=16))
    while not scheduler.num_preemptions:
        step(scheduler)
    starts = {}
    while scheduler.has_unfinished:
        plan, _ = step(scheduler)
        starts.update({request.request_id: start for request, start in zip(plan.admitted, plan.starts, strict=False)})
    assert starts["b"] > 0


def test_stop_reasons() -> None:
    scheduler = scheduler_of()
    request = request_of("a", 3, stop_token_ids=[7])
    request.eos_token_ids = (2, 3)
    scheduler.add(request)
    assert step(scheduler, 7)[1] == [request]
    assert (request.finish_reason, request.stop_reason) == ("stop", 7)
    for eos in (2, 3):
        request = request_of("a", 3, stop_token_ids=[7, eos])
        request.eos_token_ids = (2, 3)
        scheduler.add(request)
        step(scheduler, eos)
        assert (request.finish_reason, request.stop_reason) == ("stop", None)
    request = request_of("a", 3, stop_token_ids=[2], ignore_eos=True)
    request.eos_token_ids = (2, 3)
    scheduler.add(request)
    assert step(scheduler, 3)[1] == []
    step(scheduler, 2)
    assert (request.finish_reason, request.stop_reason) == ("stop", 2)


def test_finish_from_outside() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    scheduler.add(request_of("a", 3))
    scheduler.add(request_of("b", 3))
    step(scheduler)
    step(scheduler)
    running = scheduler.finish("a", "stop", "END")
    assert running is not None
    assert (running.finish_reason, running.stop_reason, running.output_token_ids) == ("stop", "END", [TOKEN] * 2)
    waiting = scheduler.finish("b", "abort")
    assert waiting is not None
    assert (waiting.finish_reason, waiting.output_token_ids) == ("abort", [])
    assert scheduler.finish("b", "abort") is None
    assert not scheduler.has_unfinished
    assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)
    scheduler.check_integrity()


def test_finish_between_schedule_and_update_drops_the_token() -> None:
    scheduler = scheduler_of(caching=True)
    for name in "ab":
        scheduler.add(request_of(name, 8))
    plan = plan_of(scheduler)
    gone = scheduler.finish("a", "abort")
    scheduler.add(request_of("c", 8))
    later = plan_of(scheduler)
    assert later.slots[-1] == plan.slots[0], "c has a's slot"
    assert scheduler.update(plan, np.full(2, TOKEN, np.int32)) == []
    scheduler.check_integrity()
    assert plan.samples.tolist() == [False, True]
    assert gone is not None
    assert gone.output_token_ids == []
    assert scheduler.table.num_tokens[later.slots[-1]] == 8


def take(scheduler: Scheduler, plan: StepPlan, token: int = TOKEN) -> list[Request]:
    finished = scheduler.update(plan, np.full(plan.num_rows, token, np.int32))
    scheduler.check_integrity()
    return finished


def test_steps_ahead_count_on_tokens_that_nobody_knows_yet() -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 6, max_tokens=3))
    plans = [plan_of(scheduler) for _ in range(3)]
    assert [rows(plan) for plan in plans] == [[("a", 0, 6, True)], [("a", 6, 1, True)], [("a", 7, 1, True)]]
    assert scheduler.schedule() is None, "its length is reached"
    assert scheduler.has_unfinished
    assert scheduler.table.num_pending.sum() == 3
    assert take(scheduler, plans[0], 11) == take(scheduler, plans[1], 12) == []
    (finished,) = take(scheduler, plans[2], 13)
    assert (finished.output_token_ids, finished.finish_reason) == ([11, 12, 13], "length")
    assert not scheduler.has_unfinished


def test_the_step_after_a_stop_token_is_wasted() -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 6, stop_token_ids=[11]))
    scheduler.add(request_of("b", 6))
    first, second = plan_of(scheduler), plan_of(scheduler)
    (finished,) = take(scheduler, first, 11)
    scheduler.add(request_of("c", 6))
    third = plan_of(scheduler)
    assert rows(third) == [("b", 7, 1, True), ("c", 0, 6, True)]
    assert third.slots[1] == first.slots[0], "c has a's slot"
    assert take(scheduler, second, 12) == []
    assert second.samples.tolist() == [False, True]
    assert finished.output_token_ids == [11]
    assert scheduler.table.output_tokens(int(third.slots[1])).tolist() == []


def test_pages_that_run_out_wait_for_the_tokens_on_their_way() -> None:
    scheduler = scheduler_of(num_pages=9, block_size=2, max_model_len=12)
    for name in "ab":
        scheduler.add(request_of(name, 6, max_tokens=6))
    plans = [plan_of(scheduler) for _ in range(3)]
    assert scheduler.schedule() is None, "eight pages hold eight tokens of each"
    assert scheduler.num_preemptions == 0
    for plan in plans:
        take(scheduler, plan)
    plan = plan_of(scheduler)
    assert [request.request_id for request in plan.preempted] == ["b"]
    assert plan.preempted[0].output_token_ids == [TOKEN] * 3


def test_names_are_unique_among_unfinished_requests() -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 3, max_tokens=1))
    with pytest.raises(RequestError, match="'a' is in use") as error:
        scheduler.add(request_of("a", 3))
    assert error.value.parameter == "request_id"
    step(scheduler)
    scheduler.add(request_of("a", 3))


def test_too_few_pages_for_one_request() -> None:
    with pytest.raises(CapacityError, match=r"needs 16 pages of 4 tokens, but only 15 .* lower max_model_len to 60"):
        scheduler_of(num_pages=16)
    scheduler_of(num_pages=17)


def test_reset_prefix_cache_needs_an_idle_engine() -> None:
    scheduler = scheduler_of(caching=True)
    scheduler.add(request_of("a", 9, max_tokens=2))
    step(scheduler)
    assert not scheduler.reset_prefix_cache()
    step(scheduler)
    assert scheduler.reset_prefix_cache()
    scheduler.add(again := request_of("a", 9))
    step(scheduler)
    assert again.num_cached_tokens == 0


def test_several_tokens_of_a_row_are_taken_up_to_the_one_that_ends_it() -> None:
    scheduler = scheduler_of()
    for name, options in (("a", {"stop_token_ids": [12]}), ("b", {"max_tokens": 2}), ("c", {}), ("d", {})):
        scheduler.add(request_of(name, 4, **options))
    plan = plan_of(scheduler)
    tokens = np.array([11, 12, 13, 21, 22, 23, 31, 41, 42], np.int32)
    finished = scheduler.update(plan, tokens, np.array([3, 3, 1, 2], np.int32))
    scheduler.check_integrity()
    ended = {each.request_id: (each.output_token_ids, each.finish_reason) for each in finished}
    assert ended == {"a": ([11, 12], "stop"), "b": ([21, 22], "length")}
    assert plan.num_taken is not None
    assert plan.num_taken.tolist() == [2, 2, 1, 2]
    assert rows(plan_of(scheduler)) == [("c", 4, 1, True), ("d", 4, 2, True)]


def test_known_tokens_take_back_what_steps_under_way_sample() -> None:
    scheduler = scheduler_of()
    for name in "ab":
        scheduler.add(request_of(name, 4))
    plans = [plan_of(scheduler) for _ in range(3)]
    assert scheduler.update(plans[0], np.array([11, 12, 21], np.int32), np.array([2, 1], np.int32)) == []
    scheduler.check_integrity()
    assert [plan.samples.tolist() for plan in plans] == [[True, True], [False, True], [False, True]]
    # The third step computed with a token that does not follow.
    later = plan_of(scheduler)
    assert rows(later) == [("a", 5, 1, True), ("b", 6, 1, True)]
    for plan in plans[1:]:
        take(scheduler, plan, 31)
    take(scheduler, later, 41)
    outputs = {}
    for name in "ab":
        request = scheduler.get(name)
        assert request is not None
        outputs[name] = scheduler.table.output_tokens(request.slot).tolist()
    assert outputs == {"a": [11, 12, 41], "b": [21, 31, 31, 41]}
