"""How many requests there are, and whose: whether more are taken."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxllm.errors import QueueFullError, RequestError


class Admission:
    """All requests in flight, of one engine or of several, counted in sequences. Belongs to an event loop."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        """Set while there is none."""
        self.idle.set()
        self._names: set[str] = set()
        self._sequences = 0
        self._by_owner: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._names)

    def check(self, requests: Sequence[Any], most: int | None) -> None:
        """Raise `QueueFullError` if these are too many beside `most` sequences, `RequestError` for an id in use."""
        count = sum(len(request.children) for request in requests)
        if most is not None and self._sequences + count > most and self._has_its_share(requests, count, most):
            raise QueueFullError(f"{self._sequences} sequences run or wait already, of {most}: try again later")
        known: set[str] = set()
        for request in requests:
            name = request.request_id
            if name in self._names or name in known:
                raise RequestError(f"request_id={name!r} is in use", "request_id")
            known.add(name)

    def _has_its_share(self, requests: Sequence[Any], count: int, most: int) -> bool:
        """Whether these are too many for their owner when all places are taken.

        Those who hold less than an equal part still find room, so that nobody can take all places from the others.
        """
        owner = _owner(requests[0])
        others = len(self._by_owner.keys() - {owner})
        return not others or self._by_owner[owner] + count > most // (others + 1)

    def add(self, request: Any) -> None:
        """One more request."""
        self._names.add(request.request_id)
        self._sequences += len(request.children)
        self._by_owner[_owner(request)] += len(request.children)
        self.idle.clear()

    def remove(self, request: Any) -> None:
        """A request has ended."""
        self._names.remove(request.request_id)
        self._sequences -= len(request.children)
        owner = _owner(request)
        self._by_owner[owner] -= len(request.children)
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        if request.reservation is not None:
            request.reservation.settle()
        if not self._names:
            self.idle.set()


def _owner(request: Any) -> str:
    name: str = request.children[0].owner.name
    return name
