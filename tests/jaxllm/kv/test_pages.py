"""The page pool: blank before spare before wanted, oldest wanted first, and every page in exactly one state."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxllm.kv.pages import NULL_PAGE, PagePool


def pages_of(*pages: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(pages, np.int32)


def test_hands_out_every_page_but_the_null_page() -> None:
    pool = PagePool(5)
    pages, evicted = pool.take(4)
    assert pages.tolist() == [1, 2, 3, 4]
    assert pages.dtype == np.int32
    assert evicted == []
    assert (pool.num_free, pool.num_held) == (0, 4)
    assert NULL_PAGE not in pages


def test_taking_nothing_from_an_empty_pool() -> None:
    pool = PagePool(1)
    pages, evicted = pool.take(0)
    assert (len(pages), evicted, pool.num_free) == (0, [], 0)


def test_more_than_there_is_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        PagePool(3).take(3)


def test_release_twice_is_noticed() -> None:
    pool = PagePool(3)
    pages, _ = pool.take(1)
    pool.release(pages)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(pages)


def test_shared_page_stays_until_its_last_holder_leaves() -> None:
    pool = PagePool(3)
    pages, _ = pool.take(1)
    pool.share(pages)
    pool.release(pages)
    assert pool.num_held == 1
    pool.release(pages)
    assert pool.num_held == 0


def test_blank_pages_go_first_then_the_tail_of_the_oldest_sequence() -> None:
    pool = PagePool(7)
    first, _ = pool.take(2)
    second, _ = pool.take(2)
    for page in [*first.tolist(), *second.tolist()]:
        pool.keep_when_idle([page])
    pool.release(second)
    pool.release(first)
    assert pool.num_free == 6
    pages, evicted = pool.take(3)
    assert pages.tolist() == [5, 6, second[1]]
    assert evicted == [second[1]]
    assert pool.take(3)[1] == [second[0], first[1], first[0]]


def test_an_idle_page_that_is_shared_again_is_not_evicted() -> None:
    pool = PagePool(3)
    pages, _ = pool.take(2)
    pool.keep_when_idle(pages.tolist())
    pool.release(pages)
    assert pool.count_idle(pages) == 2
    pool.share(pages[:1])
    assert pool.count_idle(pages) == 1
    assert pool.take(1)[1] == [pages[1]]
    pool.check_integrity()


def test_forgotten_contents_leave_blank_pages() -> None:
    pool = PagePool(3)
    pages, _ = pool.take(2)
    pool.keep_when_idle([int(pages[0])])
    pool.release(pages)
    pool.forget_contents()
    assert pool.retained_pages() == set()
    assert pool.take(2)[1] == []
    pool.check_integrity()


def test_pages_of_several_tables_are_kept_at_once() -> None:
    pool = PagePool(5)
    pages, _ = pool.take(4)
    pool.keep_when_idle(pages.reshape(2, 2), wanted=np.array([True, False]))
    pool.release_last(pages)
    pool.check_integrity()
    # The second column is spare: of it the last first, then the first column, where the last became idle first.
    assert pool.take(4)[1] == [pages[3], pages[1], pages[2], pages[0]]


def test_a_page_that_nobody_holds_has_no_one_holder() -> None:
    """So what is released once too often is found out, instead of becoming blank twice."""
    pool = PagePool(4)
    pages, _ = pool.take(2)
    assert pool.have_one_holder(pages)
    assert not pool.have_one_holder(pages_of(pages[0], 3))
    pool.share(pages[:1])
    assert not pool.have_one_holder(pages)


class PoolMachine(RuleBasedStateMachine):
    """Against a model that writes down every page's holders, and idle pages in the order they became idle."""

    @initialize(num_pages=st.integers(1, 12))
    def start(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages)
        self.holders: list[list[int]] = []  # each holder's pages, in order
        self.kept: set[int] = set()
        self.wanted: set[int] = set()
        self.idle: list[int] = []  # in the order in which they become idle, or wanted
        self.blank = set(range(1, num_pages))

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.pool.num_free))
        pages, evicted = self.pool.take(count)
        spare = [page for page in self.idle if page not in self.wanted]
        order = spare[::-1] + [page for page in self.idle if page in self.wanted]
        assert evicted == order[: max(0, count - len(self.blank))]
        fresh = set(pages.tolist()) - set(evicted)
        assert len(set(pages.tolist())) == count
        assert fresh <= self.blank
        self.blank -= fresh
        self.idle = [page for page in self.idle if page not in evicted]
        self.kept -= set(evicted)
        self.wanted -= set(evicted)
        self.holders.append(pages.tolist())

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), wanted=st.booleans())
    def keep(self, data: st.DataObject, wanted: bool) -> None:
        pages = data.draw(st.sampled_from(self.holders))
        if pages:
            page = data.draw(st.sampled_from(pages))
            self.pool.keep_when_idle([page], wanted=wanted)
            self.kept.add(page)
            self.wanted = self.wanted | {page} if wanted else self.wanted - {page}

    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        if self.kept:
            page = data.draw(st.sampled_from(sorted(self.kept)))
            self.pool.want([page])
            if page in self.idle and page not in self.wanted:
                self.idle = [each for each in self.idle if each != page] + [page]
            self.wanted.add(page)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """As the prefix cache does: pages that are idle or held by others."""
        known = sorted(set(self.idle).union(*self.holders))
        pages = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        self.pool.share(pages_of(*pages))
        self.idle = [page for page in self.idle if page not in pages]
        self.holders.append(pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        pages = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        if self.pool.have_one_holder(pages_of(*pages)):
            self.pool.release_last(pages_of(*pages))
        else:
            self.pool.release(pages_of(*pages))
        dropped = [page for page in pages if not any(page in others for others in self.holders)]
        self.idle += [page for page in reversed(dropped) if page in self.wanted]
        self.idle += [page for page in dropped if page in self.kept - self.wanted]
        self.blank |= set(dropped) - self.kept

    @precondition(lambda self: not any(self.holders))
    @rule()
    def forget(self) -> None:
        self.pool.forget_contents()
        self.blank |= set(self.idle)
        self.idle = []
        self.kept, self.wanted = set(), set()

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        counts = [sum(page in pages for pages in self.holders) for page in range(self.pool.num_pages)]
        assert self.pool.ref_counts.tolist() == counts
        assert self.pool.num_free == len(self.idle) + len(self.blank)
        assert self.pool.retained_pages() == self.kept


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase
