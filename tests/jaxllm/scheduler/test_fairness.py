"""Several owners: nobody waits long after what another has sent, and nothing is left unused."""

from collections import Counter
from collections.abc import Sequence
from itertools import count as counting
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.kv.manager import KVManager
from jaxllm.requests.owners import Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.fair_queue import FairQueue
from jaxllm.scheduler.fairness import fill
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.shares import Shares

ADA, BEN = Owner("ada"), Owner("ben")


class Run:
    """A scheduler whose requests all run to their lengths, with steps under way as in the engine."""

    def __init__(self, *, num_pages: int = 1001, ahead: int = 1, **options: Any) -> None:
        defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 256}
        self.scheduler = Scheduler(pages=KVManager(num_pages, 4), **{**defaults, **options})
        self._ahead = ahead
        self._under_way: list[StepPlan] = []
        self._numbers = 0
        self.computed: Counter[str] = Counter()
        self.ended: list[Request] = []

    def add(self, owner: Owner, prompt: int, output: int, count: int = 1, **fields: Any) -> list[Request]:
        made = []
        for _ in range(count):
            self._numbers += 1
            tokens = np.random.default_rng(self._numbers).integers(10, 1000, prompt).astype(np.int32)
            params = SamplingParams(max_tokens=output, ignore_eos=True)
            request = Request(
                request_id=str(self._numbers), prompt_token_ids=tokens, params=params, owner=owner, **fields
            )
            self.scheduler.add(request)
            made.append(request)
        return made

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            while len(self._under_way) <= self._ahead and (plan := self.scheduler.schedule()) is not None:
                self.scheduler.check_integrity()
                for request, tokens in zip(plan.requests, plan.num_new_tokens.tolist(), strict=True):
                    self.computed[request.owner.name] += tokens
                self._under_way.append(plan)
            if self._under_way:
                plan = self._under_way.pop(0)
                self.ended += self.scheduler.update(plan, np.full(plan.num_rows, 5, np.int32))
                self.scheduler.check_integrity()

    def steps_to_first_token(self, request: Request, most: int = 1000) -> int:
        for count in range(1, most):
            self.step()
            if request.finish_reason or (request.slot >= 0 and len(self.scheduler.table.output_tokens(request.slot))):
                return count
        raise AssertionError("starved")


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_request_does_not_wait_behind_many_sequences_of_another(ahead: int) -> None:
    run = Run(ahead=ahead)
    many = run.add(ADA, prompt=8, output=200, count=100)
    run.step(10)
    (one,) = run.add(BEN, prompt=8, output=3)
    assert run.steps_to_first_token(one) <= 5 + ahead
    assert run.scheduler.num_preemptions == 1
    run.step(10)
    assert one.finish_reason == "length"
    assert run.scheduler.num_running == 8, "what was taken is in use again"
    assert sum(each.num_preemptions for each in many) == 1


def test_slots_are_shared_by_weight() -> None:
    run = Run()
    run.add(ADA, prompt=4, output=50, count=60)
    run.step(5)
    run.add(Owner("ben", 3.0), prompt=4, output=50, count=60)
    run.step(10)
    held = Counter(request.owner.name for request in run.scheduler.table.requests if request is not None)
    assert held == {"ada": 2, "ben": 6}
    run.computed.clear()
    run.step(200)
    assert run.computed["ben"] / run.computed["ada"] == pytest.approx(3, rel=0.15)


def test_a_sequence_that_is_the_last_of_its_owner_is_not_taken() -> None:
    run = Run(max_num_seqs=2)
    alone = [*run.add(ADA, prompt=4, output=100), *run.add(BEN, prompt=4, output=100)]
    run.step(3)
    (third,) = run.add(Owner("cyd", 9.0), prompt=4, output=2)
    run.step(50)
    assert third.slot == -1
    assert all(request.num_preemptions == 0 for request in alone)


def test_pages_are_shared_too() -> None:
    """Slots are free, but one owner holds nearly all pages."""
    run = Run(num_pages=65, max_num_seqs=16)
    run.add(ADA, prompt=20, output=100, count=16)
    run.step(30)
    assert run.scheduler.num_running < 16
    (one,) = run.add(BEN, prompt=60, output=2)
    assert run.steps_to_first_token(one) <= 12


def test_a_prompt_does_not_wait_behind_long_prompts_of_another() -> None:
    run = Run(max_num_seqs=64)
    run.add(ADA, prompt=250, output=1, count=64)
    run.step(3)
    (one,) = run.add(BEN, prompt=10, output=1)
    assert run.steps_to_first_token(one) <= 3, "500 steps in order of arrival"


def test_tokens_of_a_step_are_shared_between_prompts_and_none_is_left() -> None:
    run = Run(ahead=0)
    run.add(ADA, prompt=200, output=1, count=4)
    run.step()
    run.add(BEN, prompt=200, output=1, count=4)
    run.step()
    run.computed.clear()
    run.step(4)
    assert run.computed == {"ada": 64, "ben": 64}


def test_priorities_come_before_fairness() -> None:
    run = Run(policy="priority", max_num_seqs=4)
    urgent = run.add(ADA, prompt=4, output=60, count=8, priority=-1)
    run.step(4)
    (later,) = run.add(BEN, prompt=4, output=1, priority=1)
    run.step(70)
    assert later.finish_reason is None
    assert all(each.num_preemptions == 0 for each in urgent)
    run.step(200)
    assert later.finish_reason == "length"


def test_one_of_many_requests_does_not_starve_behind_owners_that_have_one_each() -> None:
    """Whoever is new has been given nothing yet, and there is always somebody new."""
    run = Run(max_num_seqs=2)
    *_, last = run.add(ADA, prompt=8, output=60, count=4)
    for number in range(10_000):
        if run.scheduler.num_waiting < 20:
            run.add(Owner(f"guest {number}"), prompt=8, output=8)
        run.step()
        if last.finish_reason:
            break
    assert last.finish_reason == "length"


def test_nobody_saves_up_for_later() -> None:
    """One owner was idle, or had little to do, while another kept the server busy: both then get the same."""
    run = Run()
    run.add(BEN, prompt=4, output=200)
    run.add(ADA, prompt=4, output=20, count=60)
    run.step(100)
    run.add(BEN, prompt=4, output=20, count=60)
    run.step(10)
    run.computed.clear()
    run.step(60)
    assert run.computed["ben"] / run.computed["ada"] == pytest.approx(1, rel=0.2)


def test_one_owner_is_served_as_if_there_were_none() -> None:
    def story(owners: Sequence[Owner]) -> list[list[tuple[str, int]]]:
        run, seen = Run(num_pages=65, ahead=0), []
        rng = np.random.default_rng(1)
        for number in range(120):
            if number < 60:
                run.add(owners[number % len(owners)], int(rng.integers(1, 60)), int(rng.integers(1, 30)))
            plan = run.scheduler.schedule()
            if plan is None:
                break
            names = [request.request_id for request in plan.requests]
            seen.append(list(zip(names, plan.num_new_tokens.tolist(), strict=True)))
            run.scheduler.update(plan, np.full(plan.num_rows, 5, np.int32))
        return seen

    assert story([ADA]) == story([Owner()])
    assert story([ADA]) != story([ADA, BEN])


AMOUNTS = st.lists(st.tuples(st.integers(0, 50), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=6)


@given(AMOUNTS, st.integers(0, 200))
def test_dividing(amounts: list[tuple[int, float]], budget: int) -> None:
    wanted, weights = (np.array(column, float) for column in zip(*amounts, strict=True))
    given_each = fill(wanted, weights, budget)
    assert (given_each <= wanted).all()
    assert min(budget, wanted.sum()) - len(amounts) < given_each.sum() <= budget or given_each.sum() == wanted.sum()
    # Nobody who wants more has less, for its weight, than another.
    unmet = given_each < wanted
    if unmet.any():
        assert ((given_each + 1)[unmet] / weights[unmet]).min() >= (given_each / weights).max() - 1e-9


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "take", "remove", "charge"]), st.integers(0, 2), st.integers(-1, 1)),
    max_size=60,
)


@given(ACTIONS)
def test_a_queue_of_several_owners(actions: list[tuple[str, int, int]]) -> None:
    shares = Shares(most_debt=20)
    queue: FairQueue[str] = FairQueue(shares)
    owners = [shares.enter(Owner(name)) for name in "abc"]
    waiting: list[tuple[int, int, str, int]] = []  # priority, arrival, name, owner
    taken: list[tuple[int, int, str, int]] = []
    for arrival, (action, number, priority) in enumerate(actions):
        if action == "push":
            # Now and then one that was taken returns to its place.
            again = taken.pop() if taken and priority else (priority, arrival, str(arrival), owners[number])
            waiting.append(again)
            queue.push(again[2], again[3], again[0], again[1])
        elif action == "take" and waiting:
            first = min(waiting, key=lambda each: (each[0], shares.served[each[3]], each[1]))
            assert queue.peek() == first[2]
            queue.take(first[2])
            waiting.remove(first)
            taken.append(first)
        elif action == "remove" and waiting:
            queue.remove(waiting.pop(number % len(waiting))[2])
        elif action == "charge":
            shares.charge(owners[number], 7)
        assert set(queue) == {name for _, _, name, _ in waiting}
        assert set(shares.waiting) == {owner for *_, owner in waiting}
        assert len(queue) == len(waiting)
        assert (queue.peek() is None) == (not waiting)


@pytest.mark.parametrize("clients", [40, 64, 100])
def test_a_first_token_waits_for_one_step_of_others(clients: int) -> None:
    """Prompts of 1,500 tokens fill every step, and a request of another owner comes just after one has begun."""
    budget, rng, names = 512, np.random.default_rng(0), counting()
    scheduler = Scheduler(max_num_seqs=64, max_num_batched_tokens=budget, max_model_len=2048, pages=KVManager(8193, 16))

    def add(owner: Owner, length: int, outputs: int) -> Request:
        request = Request(
            request_id=str(next(names)),
            prompt_token_ids=rng.integers(3, 9999, length).astype(np.int32),
            params=SamplingParams(max_tokens=outputs),
            owner=owner,
        )
        scheduler.add(request)
        return request

    def step() -> tuple[int, set[Request]]:
        """How many tokens it computed, and who got one."""
        plan = scheduler.schedule()
        assert plan is not None
        ended = scheduler.update(plan, rng.integers(3, 9999, plan.num_rows).astype(np.int32))
        for _ in [each for each in ended if each.owner is ADA]:
            add(ADA, 1500, 8)
        return plan.num_tokens, {each for row, each in enumerate(plan.requests) if plan.samples[row]}

    for _ in range(clients):
        add(ADA, 1500, 8)
    total = steps = 0
    for pause in rng.integers(2, 12, 30).tolist():
        for _ in range(pause):
            total, steps = total + step()[0], steps + 1
        request, computed, served = add(BEN, 10, 2), 0, set[Request]()
        while request not in served:
            tokens, served = step()
            computed, total, steps = computed + tokens, total + tokens, steps + 1
        assert computed <= budget // 8
    assert total > 0.85 * steps * budget
