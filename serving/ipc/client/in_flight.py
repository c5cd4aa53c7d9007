"""The requests in flight, as this side of the engine knows them."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from jaxllm.serving.ipc.client.admission import Admission


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

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._readers

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
