"""The order of the requests that run."""

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request

Policy = Literal["fcfs", "priority"]
OrderKey = Callable[[Request], tuple[int, int]]


def _arrival_key(request: Request) -> tuple[int, int]:
    return 0, request.arrival


def _priority_key(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival


def order_key(policy: Policy) -> OrderKey:
    """What requests are sorted by, smallest first; unique, because `arrival` is. It never changes for a request."""
    return _priority_key if policy == "priority" else _arrival_key


class RunningOrder:
    """Requests that hold a slot, in order, as objects and as an array of their slots."""

    def __init__(self, key: OrderKey) -> None:
        self._key = key
        self._requests: list[Request] = []
        self._slots: Int32Array | None = None  # rebuilt only when somebody came or left

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def requests(self) -> list[Request]:
        """The requests in order: a copy."""
        return self._requests.copy()

    @property
    def slots(self) -> Int32Array:
        """Slots of the requests in order, int32 [n]; do not write to it."""
        if self._slots is None:
            self._slots = np.array([request.slot for request in self._requests], np.int32)
        return self._slots

    @property
    def last(self) -> Request:
        """The one that yields first when pages run out: lowest priority, latest arrival."""
        return self._requests[-1]

    def add(self, request: Request) -> None:
        """Insert a request, which has its slot, at its place."""
        insort(self._requests, request, key=self._key)
        self._slots = None

    def remove(self, request: Request) -> None:
        """Take out a request."""
        self._requests.remove(request)
        self._slots = None

    def check_integrity(self) -> None:
        """Assert that the order holds and the array is not stale."""
        keys = [self._key(request) for request in self._requests]
        assert keys == sorted(set(keys))
        assert self.slots.tolist() == [request.slot for request in self._requests]
