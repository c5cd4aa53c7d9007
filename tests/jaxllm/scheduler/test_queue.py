"""The order of running requests."""

import numpy as np

from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.queue import RunningOrder, order_key


def request_of(arrival: int, priority: int = 0) -> Request:
    request = Request(
        request_id=str(arrival),
        prompt_token_ids=np.array([1], np.int32),
        params=SamplingParams(),
        priority=priority,
    )
    request.arrival = arrival
    return request


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
