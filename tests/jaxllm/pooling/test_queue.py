"""Which texts run in a step: nobody is forgotten, nobody overtakes, and a step is never too large."""

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.queue import PoolingQueue
from jaxllm.pooling.request import PoolingRequest

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
            removed = queue.remove([str(number)])
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
