"""Pages that are followed tell how long their contents lived, lay idle, and when they were used."""

import numpy as np
import pytest

from jaxllm.kv.lifetimes import PageLife, PageLifetimes
from jaxllm.kv.pages import PagePool


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def followed(num_pages: int, share: float, clock: Clock) -> tuple[PagePool, PageLifetimes]:
    pool = PagePool(num_pages)
    pool.watcher = lifetimes = PageLifetimes(share, clock)
    return pool, lifetimes


def test_a_life_from_handing_out_to_eviction(clock: Clock) -> None:
    pool, lifetimes = followed(3, 1.0, clock)
    pages, _ = pool.take(2)
    pool.keep_when_idle(pages)
    pool.release(pages)
    for moment in (101.0, 103.0, 110.0, 111.0, 115.0):
        clock.now = moment
        pool.share(pages[:1])
        pool.release(pages[:1])
    clock.now = 120.0
    _, evicted = pool.take(2)
    assert sorted(evicted) == pages.tolist()
    by_lifetime = sorted(lifetimes.take(), key=lambda life: life.idle)
    assert by_lifetime == [PageLife(20.0, 5.0, (7.0, 1.0, 4.0)), PageLife(20.0, 20.0)]
    assert lifetimes.take() == ()


def test_pages_without_contents_are_not_evicted(clock: Clock) -> None:
    pool, lifetimes = followed(3, 1.0, clock)
    for _ in range(3):
        pages, _ = pool.take(2)
        pool.release(pages)
    assert lifetimes.take() == ()
    pages, _ = pool.take(2)
    pool.keep_when_idle(pages)
    pool.release(pages)
    pool.forget_contents()
    pool.take(2)
    assert lifetimes.take() == ()


def test_a_share_of_the_pages_is_followed(clock: Clock) -> None:
    pool, lifetimes = followed(10_001, 0.1, clock)
    pages, _ = pool.take(10_000)
    pool.keep_when_idle(pages)
    pool.release(pages)
    pool.take(10_000)
    assert 700 < len(lifetimes.take()) < 1300


def test_memory_is_bounded_by_the_pages(clock: Clock) -> None:
    pool, lifetimes = followed(5, 1.0, clock)
    pages, _ = pool.take(4)
    for _ in range(50):
        pool.share(pages)
    assert max(map(len, lifetimes._uses.values())) <= 4
    assert np.all(pool.ref_counts[pages] == 51)
