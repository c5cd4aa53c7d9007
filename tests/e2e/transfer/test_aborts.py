"""Requests that end early, at any stage on either side, strand nothing: no leases, no pages, no memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from tests.e2e.driving import request
from tests.e2e.test_host_tier import PARAMS, VOCABULARY
from tests.e2e.transfer.pairs import FOR_ANOTHER, drive, nothing_left, pair, with_params


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with pair(num_gpu_blocks_override=40) as found:
        yield found


def churn(first: Engine, second: Engine, count: int, rng: np.random.Generator) -> dict[str, int]:
    """`count` requests, each aborted after some steps of one side or the other, or not at all."""
    ends = {"on the first": 0, "on the second": 0, "not at all": 0}
    waiting: list[tuple[str, int]] = []
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        first.copy_while_idle()
        if second.has_unfinished_requests():
            second.step()
        due = [name for name, when in waiting if when <= turn]
        waiting[:] = [(name, when) for name, when in waiting if when > turn]
        second.abort_request(due)

    for number in range(count):
        prompt = rng.integers(3, VOCABULARY, int(rng.integers(20, 200))).tolist()
        given = request(number, prompt, **{**PARAMS, "max_tokens": 4})
        place = str(rng.choice(list(ends)))
        ends[place] += 1
        mine = with_params(given, FOR_ANOTHER, max_tokens=1)
        if place == "on the first":
            first.add_request(mine)
            for _ in range(int(rng.integers(0, 4))):
                if first.has_unfinished_requests():
                    first.step()
            first.abort_request(mine.request_id)
            drive(first, [])
            continue
        told: dict[str, Any] | None = drive(first, [mine])["told"].get(mine.request_id)
        second.add_request(with_params(given, told))
        if place == "on the second":
            waiting.append((given.request_id, turn + int(rng.integers(0, 8))))
        for _ in range(int(rng.integers(0, 6))):
            step()
    while second.has_unfinished_requests() or waiting:
        step()
    return ends


def check(first: Engine, second: Engine, count: int, seed: int) -> None:
    ends = churn(first, second, count, np.random.default_rng(seed))
    nothing_left(first, second)
    assert min(ends.values()) > count // 10
    kept, fetched = first.stats().transfer, second.stats().transfer
    assert kept.leases == 0
    assert kept.expired == 0
    assert fetched.fetches > 0
    assert fetched.timeout == fetched.damaged == fetched.refused == 0


def test_aborts_at_every_stage(engines: tuple[Engine, Engine]) -> None:
    check(*engines, count=40, seed=0)


@pytest.mark.exhaustive
def test_a_thousand_aborts(engines: tuple[Engine, Engine]) -> None:
    for seed in range(1, 11):
        check(*engines, count=100, seed=seed)
