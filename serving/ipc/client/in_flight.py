"""The requests in flight, as this side of the engines knows them: how many, whose, and who reads their results."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxllm.errors import QueueFullError, RequestError, quoted


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
        """Raise `QueueFullError` if these are more than `most` sequences allow, `RequestError` for an id in use."""
        count = sum(len(request.children) for request in requests)
        if most is not None and self._sequences + count > most and self._has_its_share(requests, count, most):
            raise QueueFullError(
                f"the queue is full: {self._sequences} of {most} sequences are running or waiting; try again later"
            )
        known: set[str] = set()
        for request in requests:
            name = request.request_id
            if name in self._names or name in known:
                raise RequestError(f"request_id={quoted(name)} is in use", "request_id")
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


class InFlight:
    """Readers by request, of one engine. Belongs to an event loop.

    A reader has `request`, `put`, `fail` and `close`, as an `OutputStream` has.
    """

    def __init__(self, admission: Admission) -> None:
        """`admission` counts the requests of all engines."""
        self.idle = asyncio.Event()
        """Set while there is none."""
        self.idle.set()
        self._admission = admission
        self._readers: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def num_sequences(self) -> int:
        """Sequences of all requests."""
        return sum(len(reader.request.children) for reader in self._readers.values())

    def __getitem__(self, request_id: str) -> Any:
        return self._readers[request_id]

    def get(self, request_id: str) -> Any:
        """The reader of this request; None when it is not in flight."""
        return self._readers.get(request_id)

    def ids(self) -> list[str]:
        """All requests."""
        return list(self._readers)

    def add(self, request: Any, reader: Any) -> None:
        """One more request."""
        self._readers[request.request_id] = reader
        self._admission.add(request)
        self.idle.clear()

    def remove(self, request_id: str) -> Any:
        """A request has ended; returns its reader."""
        reader = self._readers.pop(request_id)
        self._admission.remove(reader.request)
        if not self._readers:
            self.idle.set()
        return reader

    def release(self, request_id: str) -> None:
        """A request, which goes on, is another engine's from now on."""
        del self._readers[request_id]
        if not self._readers:
            self.idle.set()

    def adopt(self, reader: Any) -> None:
        """A request that another engine had, and was counted then."""
        self._readers[reader.request.request_id] = reader
        self.idle.clear()

    def readers(self, request_ids: Iterable[str]) -> list[Any]:
        """The readers of these requests."""
        return [self._readers[name] for name in request_ids]


class Reconciliation:
    """Compares the requests in flight with those that the engine has, one question at a time."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._asked: dict[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the engine owes an answer."""
        return self._asked is not None

    def ask(self, running: Mapping[str, str]) -> list[str]:
        """What to ask for: the engine's names of our requests, from `running`, which maps them to ours."""
        self._asked = {child: self._in_flight[name] for child, name in running.items()}
        return list(running)

    def cancel(self) -> None:
        """There will be no answer."""
        self._asked = None

    def lost(self, unknown: Iterable[str], running: Mapping[str, str]) -> list[str]:
        """Take the answer: of our requests, those that the engine does not know."""
        asked, self._asked = self._asked or {}, None
        names = {running[child]: asked[child] for child in unknown if child in running and child in asked}
        # The name may be that of a newer request by now.
        return [name for name, reader in names.items() if self._in_flight.get(name) is reader]


def _owner(request: Any) -> str:
    name: str = request.children[0].owner.name
    return name
