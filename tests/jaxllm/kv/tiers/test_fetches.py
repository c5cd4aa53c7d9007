"""Drawn fetches into a small pool: every request ends, copies stay while they are needed, and nothing is left over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.kv.tiers.fetches import Fetch, Fetches, Source
from jaxllm.kv.tiers.host_pool import HostPool
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

STATES = 1


def make_request(number: int) -> Request:
    return Request(request_id=str(number), prompt_token_ids=np.zeros(4, np.int32), params=SamplingParams())


class Run:
    """Fetches with a thread's part played by hand."""

    def __init__(self, slots: int) -> None:
        self.pool = HostPool(slots, 8)
        self.fetches = Fetches(self.pool, lambda part: 8 if part == 0 else 16, STATES, 1000.0)
        self.active: list[Fetch] = []
        self.over: list[Fetch] = []
        self.fetches.start, self.fetches.on_end = self.active.append, self.over.append
        self.waiting: set[Request] = set()
        self.kept: set[Request] = set()

    def take(self) -> None:
        for ended in self.fetches.take_ended():
            self.waiting.discard(ended.request)
            self.kept.add(ended.request)

    def come(self, index: int, *, fails: bool) -> None:
        fetch = self.active[index % len(self.active)]
        left = [copy for copy in fetch.copies if (copy.digest, copy.part) in fetch.left]
        if left and not (fails and fetch.is_over):
            data = np.full(left[0].size, 7, np.uint8)
            found = None if fails or fetch.is_over else self.pool.fill(left[0], data)
            self.fetches.come(fetch, left[0], found)
        else:
            self.active.remove(fetch)
            self.fetches.stop(fetch, "gone" if fails and not fetch.is_over else None)


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 12), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60))
def test_drawn_fetches(slots: int, actions: list[tuple[int, int]]) -> None:
    run = Run(slots)
    requests: list[Request] = []
    for kind, number in actions:
        if kind <= 1:
            requests.append(make_request(len(requests)))
            wanted = [(bytes([page]), 0, page) for page in range(number % 3, number % 3 + 1 + number % 4)]
            wanted += [(bytes([number]), STATES, 3)] if number % 2 else []
            run.waiting.add(requests[-1])
            run.fetches.begin(requests[-1], Source("h", 1, str(number % 7)), wanted, 16)
        elif kind <= 3 and run.active:
            run.come(number, fails=kind == 3 and number % 3 == 0)
        elif kind == 4 and requests:
            gone = requests[number % len(requests)]
            run.fetches.leave(gone)
            run.waiting.discard(gone)
            run.kept.discard(gone)
        elif kind == 5 and number > 38:
            run.fetches.cancel()
            run.pool.clear()
        run.fetches.update()
        run.take()
        run.pool.check_integrity()
        assert run.fetches.num_kept <= len(run.kept | run.waiting)
    for _ in range(10_000):
        run.fetches.update()
        run.take()
        for each in list(run.kept):
            run.fetches.leave(each)
            run.kept.discard(each)
        if run.active:
            run.come(0, fails=False)
        elif not len(run.fetches):
            break
    else:
        pytest.fail("fetches do not end")
    run.take()
    assert not run.waiting
    assert not run.fetches.num_kept
    assert len({fetch.source for fetch in run.over}) <= len(run.over)
    copies = [copy for entry in run.pool._entries.values() for copy in entry.values()]
    assert all(copy.state == "ready" and not copy.readers for copy in copies)
    assert not run.pool._busy_gone
    run.pool.check_integrity()


def test_a_prompt_larger_than_the_pool_is_computed() -> None:
    run = Run(3)
    request = make_request(0)
    run.fetches.begin(request, Source("h", 1, "n"), [(bytes([page]), 0, page) for page in range(4)], 64)
    (ended,) = run.fetches.take_ended()
    assert (ended.request, ended.failure, ended.num_tokens) == (request, "no_room", 0)
    assert run.fetches.num_failed == {"no_room": 1}
    assert not run.active


def test_a_prompt_waits_for_pages_that_another_one_fetches() -> None:
    run = Run(8)
    first, second = make_request(0), make_request(1)
    pages = [(bytes([page]), 0, page) for page in range(2)]
    run.fetches.begin(first, Source("h", 1, "a"), pages, 32)
    run.fetches.begin(second, Source("h", 1, "b"), pages, 32)
    assert len(run.active) == 1
    run.come(0, fails=False)
    run.fetches.update()
    assert not run.fetches.take_ended()
    ended = set()
    for _ in range(2):
        run.come(0, fails=False)
        run.fetches.update()
        ended |= {each.request for each in run.fetches.take_ended()}
    assert ended == {first, second}
    assert {fetch.source.name for fetch in run.over} == {"a", "b"}
