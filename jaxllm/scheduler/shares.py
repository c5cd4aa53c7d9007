"""What each owner has been given while others waited, and so whose turn it is."""

import numpy as np
import numpy.typing as npt

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.owners import Owner

DEBT_STEPS = 4
"""Steps of tokens that an owner may owe the others when it comes back; more is forgotten."""

_FIRST_SIZE = 8


class Shares:
    """Accounts of the owners that have requests: tokens computed for each, divided by its weight.

    Fair queueing by start times (Goyal, Vin and Cheng, 1996) with tokens as costs, as for serving in Sheng et al.
    ("Fairness in Serving Large Language Models", 2024). An owner that begins to wait is put at the virtual time, which
    goes on with what those who wait are given: nobody saves up for later, and nobody owes more than `most_debt`
    tokens. While there is one owner nothing is counted.

    By the owner's index, while it has requests: served, weights: float64 [K]; running: int64 [K], its sequences with a
    slot.
    """

    def __init__(self, most_debt: float) -> None:
        self.served: npt.NDArray[np.float64] = np.zeros(_FIRST_SIZE)
        self.weights: npt.NDArray[np.float64] = np.ones(_FIRST_SIZE)
        self.running: npt.NDArray[np.int64] = np.zeros(_FIRST_SIZE, np.int64)
        self.waiting: dict[int, float] = {}
        """Owners that wait for a slot, and their weights."""
        self._most_debt = most_debt
        self._virtual_time = 0.0
        self._waiting_weight = 0.0
        self._index: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._requests: dict[int, int] = {}
        self._free = list(range(_FIRST_SIZE))[::-1]

    @property
    def contended(self) -> bool:
        """Whether there is more than one owner."""
        return len(self._index) > 1

    def enter(self, owner: Owner) -> int:
        """One more request of this owner; returns the owner's index."""
        index = self._index.get(owner.name)
        if index is None:
            if not self._free:
                self._extend()
            index = self._free.pop()
            self._index[owner.name], self._names[index], self._requests[index] = index, owner.name, 0
            # One that has nothing comes before those that have something and were given nothing more.
            has_something = self.running > 0
            self.served[has_something] = np.maximum(self.served[has_something], self._virtual_time + 1)
            self.served[index] = self._virtual_time
            self.weights[index] = owner.weight
        self._requests[index] += 1
        return index

    def _extend(self) -> None:
        size = len(self.served)
        self.served = np.concatenate([self.served, np.zeros(size)])
        self.weights = np.concatenate([self.weights, np.ones(size)])
        self.running = np.concatenate([self.running, np.zeros(size, np.int64)])
        self._free = list(range(size, 2 * size))[::-1]

    def leave(self, index: int) -> None:
        """A request has ended."""
        self._requests[index] -= 1
        if not self._requests[index]:
            assert not self.running[index]
            assert index not in self.waiting
            del self._requests[index], self._index[self._names.pop(index)]
            self._free.append(index)

    def begin_waiting(self, index: int) -> None:
        """The first of an owner's requests waits."""
        self.waiting[index] = weight = float(self.weights[index])
        self._waiting_weight = sum(self.waiting.values())
        now = self._virtual_time
        self.served[index] = min(max(self.served[index], now), now + self._most_debt / weight)

    def end_waiting(self, index: int) -> None:
        """None of an owner's requests waits any more."""
        del self.waiting[index]
        self._waiting_weight = sum(self.waiting.values())

    def charge(self, index: int, num_tokens: int) -> None:
        """Count tokens that an owner is given, unless nobody else could have had them."""
        if self.waiting and self.contended:
            self.served[index] += num_tokens / self.weights[index]
            if index in self.waiting:
                self._virtual_time += num_tokens / self._waiting_weight

    def charge_rows(self, owners: Int32Array) -> None:
        """`charge` of one token for each row of a step, whose owners these are, int32 [n]."""
        if self.waiting and self.contended:
            counts = np.bincount(owners, minlength=len(self.served))
            self.served += counts / self.weights
            self._virtual_time += float(counts[list(self.waiting)].sum()) / self._waiting_weight

    def check_integrity(self, running: npt.NDArray[np.int64], waiting: set[int], requests: dict[int, int]) -> None:
        """Assert that the accounts agree with the sequences that run, those who wait, and all requests."""
        assert self.running.tolist() == running.tolist()
        assert set(self.waiting) == waiting
        assert self._requests == requests
        assert set(self._index.values()) == set(requests)
        assert sorted([*self._free, *requests]) == list(range(len(self.served)))
