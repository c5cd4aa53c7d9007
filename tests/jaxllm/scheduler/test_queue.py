"""Orders of waiting and running requests."""

import numpy as np
import pytest

from jaxllm.request import Request
from jaxllm.sampling_params import SamplingParams
from jaxllm.scheduler.queue import Policy, RunningOrder, WaitingQueue, order_key


def request_of(arrival: int, priority: int = 0) -> Request:
    request = Request(
        request_id=str(arrival),
        prompt_token_ids=np.array([1], np.int32),
        params=SamplingParams(),
        priority=priority,
    )
    request.arrival = arrival
    return request


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", [0, 1, 2, 3]), ("priority", [2, 0, 3, 1])])
def test_order(policy: Policy, expected: list[int]) -> None:
    queue = WaitingQueue(order_key(policy))
    for arrival, priority in ((3, 1), (0, 1), (2, -1), (1, 2)):
        queue.push(request_of(arrival, priority))
    assert [queue.pop().arrival for _ in range(4)] == expected
    assert queue.peek() is None


def test_a_preempted_request_returns_to_its_own_place() -> None:
    queue = WaitingQueue(order_key("fcfs"))
    requests = [request_of(arrival) for arrival in range(3)]
    for request in requests:
        queue.push(request)
    first = queue.pop()
    queue.push(first)
    assert queue.peek() is first


def test_removal_anywhere() -> None:
    queue = WaitingQueue(order_key("fcfs"))
    requests = [request_of(arrival) for arrival in range(4)]
    for request in requests:
        queue.push(request)
    queue.remove(requests[0])
    queue.remove(requests[2])
    assert len(queue) == 2
    assert requests[2] not in queue
    assert set(queue) == {requests[1], requests[3]}
    assert [queue.pop(), queue.pop()] == [requests[1], requests[3]]
    with pytest.raises(AssertionError):
        queue.pop()


def test_running_order_and_its_array() -> None:
    order = RunningOrder(order_key("priority"))
    requests = [request_of(arrival, priority) for arrival, priority in ((0, 1), (1, 0), (2, 1))]
    for slot, request in zip((5, 3, 4), requests, strict=True):
        request.slot = slot
        order.add(request)
    assert order.slots.tolist() == [3, 5, 4]
    assert order.slots.dtype == np.int32
    assert order.slots is order.slots, "rebuilt only when somebody came or left"
    assert order.last is requests[2]
    order.check_integrity()
    order.remove(requests[0])
    assert order.slots.tolist() == [3, 4]
    assert list(order) == order.requests == [requests[1], requests[2]]
    order.check_integrity()
