"""Copies rest while others compute, and only then."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jaxllm.engine.offloading.pace import LONGEST, PART_OF_COMPUTING, SHARE, Pace

LONG = 1000.0


def rested(pace: Pace, seconds: float, awaited: int = 0) -> float:
    begin = time.monotonic()
    assert pace.rest(seconds, awaited) <= time.monotonic() - begin
    return time.monotonic() - begin


@contextmanager
def computing(pace: Pace) -> Iterator[None]:
    """Another thread uses a processor meanwhile."""
    pace.is_computing = True
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        pace.is_computing = False
        thread.join()


def test_copies_take_a_share_of_the_processor_time_while_anything_is_computed() -> None:
    pace = Pace(128)
    assert rested(pace, LONG) < LONGEST
    with computing(pace):
        begin = time.process_time()
        pace.rest(0.001)
        assert time.process_time() - begin >= 0.001 / SHARE
        # Two threads share it.
        threads = [threading.Thread(target=pace.rest, args=(0.0005,)) for _ in range(2)]
        begin = time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.process_time() - begin >= 2 * 0.0005 / SHARE


def test_a_rest_ends_when_nothing_is_computed_any_more_and_at_last() -> None:
    pace = Pace(128)
    pace.is_computing = True
    timer = threading.Timer(0.05, setattr, (pace, "is_computing", False))
    timer.start()
    assert 0.04 < rested(pace, LONG) < LONGEST
    timer.join()
    pace.is_computing = True
    assert rested(pace, LONG) >= LONGEST


@pytest.mark.parametrize("others", [False, True])
def test_who_waits_for_pages_waits_for_a_part_of_what_computing_them_takes(*, others: bool) -> None:
    pace = Pace(128)
    pace.byte_seconds, pace.is_computing = 1e-6, True
    thread = threading.Thread(target=pace.rest, args=(LONG,))
    if others:
        thread.start()
        time.sleep(0.01)
    assert PART_OF_COMPUTING * 0.5 <= rested(pace, LONG, awaited=500_000) < LONGEST
    pace.is_computing = False
    if others:
        thread.join()


def test_copies_that_are_behind_do_not_rest() -> None:
    pace = Pace(128)
    pace.is_computing = pace.is_behind = True
    assert rested(pace, LONG) < LONGEST
    pace.byte_seconds = 1e-6
    assert rested(pace, LONG, awaited=500_000) >= PART_OF_COMPUTING * 0.5
