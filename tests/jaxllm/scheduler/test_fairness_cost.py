"""Fairness costs little: the same requests at the same steps, of several owners and of one."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxllm.kv.manager import KVManager
from jaxllm.requests.owners import Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler


class Sent(NamedTuple):
    """A request: the step before which it comes, and its tokens."""

    step: int
    owner: str
    prompt: int
    output: int


def _count(load: list[Sent], options: dict[str, Any]) -> tuple[int, int]:
    """Steps until 90 % of a load is done, and tokens that are computed, with one step under way alongside the next.

    The last steps are left out: who ends last, and so how many run alone, is chance.
    """
    given = {"num_pages": 64 * 64 + 1, "caching": True, "max_num_seqs": 64, "max_num_batched_tokens": 512, **options}
    pages = KVManager(given.pop("num_pages"), 16, enable_prefix_caching=given.pop("caching"))
    scheduler = Scheduler(pages=pages, max_model_len=1024, **given)
    rng = np.random.default_rng(1)
    coming = [(sent, rng.integers(10, 1000, sent.prompt).astype(np.int32)) for sent in sorted(load)][::-1]
    under_way: list[StepPlan] = []
    step = steps = tokens = done = 0
    ends: dict[str, int] = {}
    work = sum(sent.prompt + sent.output - 1 for sent in load)
    while coming or scheduler.has_unfinished or under_way:
        while coming and coming[-1][0].step <= step:
            sent, ids = coming.pop()
            params = SamplingParams(max_tokens=sent.output, ignore_eos=True)
            name, owner = str(len(coming)), Owner(sent.owner)
            scheduler.add(Request(request_id=name, prompt_token_ids=ids, params=params, owner=owner))
        while len(under_way) < 2 and (plan := scheduler.schedule()) is not None:
            under_way.append(plan)
            steps += done < 0.9 * work
            tokens += plan.num_tokens
            for request, end in zip(plan.requests, (plan.starts + plan.num_new_tokens).tolist(), strict=True):
                done += max(0, end - ends.get(request.request_id, 0))
                ends[request.request_id] = max(end, ends.get(request.request_id, 0))
        if under_way:
            plan = under_way.pop(0)
            scheduler.update(plan, np.full(plan.num_rows, 5, np.int32))
        step += 1
    return steps, tokens


def _mixed(spread: int) -> list[Sent]:
    """Eight owners whose prompts and outputs have all lengths, sent within `spread` steps."""
    rng = np.random.default_rng(0)
    return [
        Sent(int(rng.integers(0, spread)), f"owner {k % 8}", int(rng.integers(5, 800)), int(rng.integers(1, 200)))
        for k in range(400)
    ]


LOADS = {
    "n=1000 and small ones": [
        *[Sent(0, "ada", 30, 100)] * 1000,
        *[Sent(20 * k, f"guest {k % 5}", 20, 16) for k in range(1, 60)],
    ],
    "64 long ones and a short one": [*[Sent(0, "ada", 900, 100)] * 64, Sent(10, "ben", 20, 16)],
    "64 long ones and 60 short ones": [
        *[Sent(0, "ada", 900, 100)] * 64,
        *[Sent(10 + 3 * k, "ben", 20, 16) for k in range(60)],
    ],
    "8 owners over 200 steps": _mixed(200),
    "8 owners at once": _mixed(1),
}
MACHINES: dict[str, dict[str, Any]] = {
    "pages for all": {},
    "few pages": {"num_pages": 1200},
    "no prefix cache": {"caching": False},
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("load", LOADS)
def test_fairness_needs_hardly_more_steps_or_tokens(load: str, machine: str) -> None:
    options = MACHINES[machine]
    steps, tokens = _count([sent._replace(owner="one") for sent in LOADS[load]], options)
    fair_steps, fair_tokens = _count(LOADS[load], options)
    assert fair_steps <= 1.02 * steps
    assert fair_tokens <= 1.02 * tokens


def test_fairness_costs_little_where_slots_are_few() -> None:
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    load = _mixed(1)[:200]
    steps, tokens = _count([sent._replace(owner="one") for sent in load], options)
    fair_steps, fair_tokens = _count(load, options)
    assert fair_steps <= 1.02 * steps
    assert fair_tokens <= 1.02 * tokens
