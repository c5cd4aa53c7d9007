"""Which texts run in a step: nobody is forgotten, nobody overtakes, no owner starves, and no step is too large."""

from collections import Counter, deque
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.queue import PoolingQueue
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.owners import Owner

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 20), st.integers(-2, 2)),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(ACTIONS, st.booleans())
def test_a_queue_like_any_other(actions: list[tuple[str, int, int]], by_priority: bool) -> None:
    queue = PoolingQueue(max_num_seqs=3, max_num_batched_tokens=20, by_priority=by_priority)
    waiting: list[tuple[int, int, int]] = []  # priority, arrival, length
    arrivals = 0
    for action, number, priority in [*actions, *[("take", 0, 0)] * 60]:
        if action == "add":
            ids = np.zeros(number, np.int32)
            params = PoolingParams()
            queue.add(PoolingRequest(request_id=str(arrivals), prompt_token_ids=ids, params=params, priority=priority))
            waiting.append((priority if by_priority else 0, arrivals, number))
            arrivals += 1
        elif action == "remove":
            removed = [each.request_id for each in queue.remove([str(number)])]
            assert removed == [str(number)] * any(each[1] == number for each in waiting)
            waiting = [each for each in waiting if each[1] != number]
        else:
            left = 20
            expected: list[int] = []
            rest = deque(sorted(waiting))
            while rest and len(expected) < 3 and rest[0][2] <= left:
                left -= rest[0][2]
                expected.append(rest.popleft()[1])
            taken = queue.take()
            lengths = [len(each.prompt_token_ids) for each in taken]
            assert {int(each.request_id) for each in taken} == set(expected)
            assert lengths == sorted(lengths, key=lambda length: length != 1)
            waiting = list(rest)
        assert len(queue) == len(waiting)
    assert not waiting


ROWS, TOKENS = 3, 20
OWNERS = [Owner("ada"), Owner("ben"), Owner("cyd", 3.0)]


class Texts:
    """A queue, and texts for it that are known by their numbers."""

    def __init__(self, **options: Any) -> None:
        defaults: Any = {"max_num_seqs": ROWS, "max_num_batched_tokens": TOKENS, "by_priority": True}
        self.queue = PoolingQueue(**{**defaults, **options})
        self.made: list[PoolingRequest] = []

    def add(self, owner: Owner, *lengths: int, priority: int = 0) -> None:
        for length in lengths:
            ids, name = np.zeros(length, np.int32), str(len(self.made))
            fields: Any = {"params": PoolingParams(), "priority": priority, "owner": owner}
            self.made.append(PoolingRequest(request_id=name, prompt_token_ids=ids, **fields))
            self.queue.add(self.made[-1])


def tokens_by_owner(taken: list[PoolingRequest]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in taken:
        counts[each.owner.name] += len(each.prompt_token_ids)
    return counts


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "remove", "take"]),
            st.integers(1, TOKENS),
            st.integers(-1, 1),
            st.integers(0, 2),
        ),
        max_size=80,
    )
)
def test_several_owners(actions: list[tuple[str, int, int, int]]) -> None:
    """Priorities come first, texts of an owner keep their order, and a step ends with what does not fit."""
    texts = Texts()
    waiting: list[PoolingRequest] = []
    for action, number, priority, owner in [*actions, *[("take", 0, 0, 0)] * 80]:
        if action == "add":
            texts.add(OWNERS[owner], number, priority=priority)
            waiting.append(texts.made[-1])
        elif action == "remove":
            removed = [each.request_id for each in texts.queue.remove([str(number)])]
            assert removed == [each.request_id for each in waiting if each.request_id == str(number)]
            waiting = [each for each in waiting if each.request_id not in removed]
        else:
            taken = texts.queue.take()
            assert set(taken) <= set(waiting)
            waiting = [each for each in waiting if each not in taken]
            used = sum(len(each.prompt_token_ids) for each in taken)
            full = len(taken) == ROWS or any(used + len(each.prompt_token_ids) > TOKENS for each in waiting)
            assert used <= TOKENS
            assert full or not waiting
            for before in taken:
                assert all(before.priority <= each.priority for each in waiting)
                same = [each for each in waiting if (each.owner, each.priority) == (before.owner, before.priority)]
                assert all(int(before.request_id) < int(each.request_id) for each in same)
        assert texts.queue.ids() == {each.request_id for each in waiting}
    assert not waiting


LENGTHS = st.lists(st.integers(1, TOKENS), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, TOKENS), st.integers(0, 20), st.integers(1, 5))
def test_one_text_does_not_wait_behind_many_of_another(lengths: list[int], length: int, steps: int, rows: int) -> None:
    texts = Texts(max_num_seqs=rows)
    texts.add(OWNERS[0], *lengths * 60)
    for _ in range(steps):
        texts.queue.take()
    texts.add(OWNERS[1], length)
    one = texts.made[-1]
    # One of the other's that came before, and then it is its turn; it may not fit alongside the first.
    assert one in texts.queue.take() + texts.queue.take()


@given(LENGTHS, LENGTHS, st.integers(1, 5))
def test_tokens_are_shared_by_weight(of_ada: list[int], of_cyd: list[int], rows: int) -> None:
    texts = Texts(max_num_seqs=rows)
    texts.add(OWNERS[0], *of_ada * 60)
    texts.add(OWNERS[2], *of_cyd * 60)
    counts: Counter[str] = Counter()
    for _ in range(15):
        counts += tokens_by_owner(texts.queue.take())
        assert abs(counts["ada"] - counts["cyd"] / 3.0) <= 2 * TOKENS


def test_a_long_text_does_not_starve_behind_owners_that_have_few_each() -> None:
    """Whoever is new has been given nothing yet, and there is always somebody new."""
    texts = Texts()
    texts.add(OWNERS[0], *[TOKENS] * 4)
    for number in range(100):
        texts.add(Owner(f"guest {number}"), 5, 5)
        if texts.made[3] in texts.queue.take():
            return
    raise AssertionError("starved")
