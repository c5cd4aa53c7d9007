"""An owner uses no more than its quota, and gets back what it did not use."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import QueueFullError, QuotaError
from jaxllm.requests.owners import Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.ipc.client.in_flight import Admission, InFlight
from jaxllm.serving.tenancy.quotas import Account, Quota, Quotas, TokenBucket, reserve
from jaxllm.serving.text.input_processor import TextRequest


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(action: Callable[[], Any]) -> float:
    with pytest.raises(QuotaError) as caught:
        action()
    return caught.value.retry_after


def request_of(prompt: int, output: int | None, n: int = 1, owner: str = "") -> TextRequest:
    params = SamplingParams(max_tokens=output, n=n)
    children = [
        Request(request_id=f"{index}", prompt_token_ids=np.zeros(prompt, np.int32), params=params, owner=Owner(owner))
        for index in range(n)
    ]
    return TextRequest(request_id="r", prompt=None, prompt_token_ids=[0] * prompt, params=params, children=children)


def test_requests_per_minute() -> None:
    clock = Clock()
    account = Account(Quota(requests_per_minute=3), clock)
    for _ in range(3):
        account.begin()
    assert refused(account.begin) == pytest.approx(20)
    clock.now += 19
    assert refused(account.begin) == pytest.approx(1)
    clock.now += 1.001
    account.begin()


def test_tokens_are_reserved_and_what_is_left_comes_back() -> None:
    account = Account(Quota(tokens_per_minute=100), Clock())
    first = request_of(10, 40, n=2)
    reserve(account, [first], max_model_len=256)
    assert first.reservation is not None
    first.reservation.outputs += [[1] * 5, [2] * 5]
    # 90 of 100 are taken; 30 more are there after 12 seconds.
    assert refused(lambda: reserve(account, [request_of(10, 20)], 256)) == pytest.approx(12)
    first.reservation.settle()
    first.reservation.settle()
    reserve(account, [request_of(10, 20), request_of(10, 40)], 256)
    assert refused(lambda: reserve(account, [request_of(1, 1)], 256)) == pytest.approx(1.2)


def test_a_request_larger_than_the_quota_takes_all_of_it() -> None:
    clock = Clock()
    account = Account(Quota(tokens_per_minute=60), clock)
    reserve(account, [request_of(10, None)], max_model_len=1000)
    assert refused(lambda: reserve(account, [request_of(10, None)], 1000)) == pytest.approx(60)
    clock.now = 60.001
    reserve(account, [request_of(10, None)], 1000)


def test_requests_at_a_time() -> None:
    account = Account(Quota(max_concurrent_requests=2), Clock())
    made = [request_of(1, 1) for _ in range(3)]
    reserve(account, made[:2], 10)
    refused(lambda: reserve(account, made[2:], 10))
    assert made[0].reservation is not None
    made[0].reservation.settle()
    reserve(account, made[2:], 10)


def test_a_changed_quota_begins_again_but_knows_what_runs() -> None:
    quotas = Quotas(Clock())
    quota = Quota(max_concurrent_requests=1)
    made = request_of(1, 1)
    reserve(quotas.account(Owner("a"), quota), [made], 10)
    assert quotas.account(Owner("a"), quota).running == 1
    assert quotas.account(Owner("a"), Quota(max_concurrent_requests=2)).running == 1


def test_processes_share_a_quota() -> None:
    share = Quota(requests_per_minute=30, tokens_per_minute=900, max_concurrent_requests=2).divided(3)
    assert share == Quota(requests_per_minute=10, tokens_per_minute=300, max_concurrent_requests=1)


@given(st.floats(0.1, 1000), st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), max_size=40))
def test_a_bucket_never_gives_more_than_its_rate(per_minute: float, asked: list[tuple[float, float]]) -> None:
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    given_out = 0.0
    for amount, pause in asked:
        clock.now += pause
        if bucket.seconds_until(amount) == 0:
            taken = min(amount, bucket.size)
            bucket.take(taken)
            given_out += taken
        assert given_out <= bucket.size + clock.now * per_minute / 60 + 1e-6


@dataclasses.dataclass
class Reader:
    request: TextRequest


def test_one_owner_cannot_take_all_places() -> None:
    admission = Admission()
    flight = InFlight(admission)

    def enter(name: str, owner: str, n: int) -> None:
        request = request_of(1, 1, n, owner)
        request.request_id = name
        admission.check([request], most=8)
        flight.add(request, Reader(request))

    enter("a", "ada", 8)
    with pytest.raises(QueueFullError):
        enter("b", "ada", 1)
    enter("c", "ben", 3)
    with pytest.raises(QueueFullError):
        enter("d", "ben", 2)
    flight.remove("a")
    enter("e", "ben", 5)
