"""Requests whose engine has ended: they go on in another one, except those that seem to be the reason."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from jaxllm.errors import EngineError, RequestFaultError
from jaxllm.serving.ipc.client.in_flight import InFlight

MAX_REQUEST_CRASHES = 2
"""The default of the option of that name."""

Progress = tuple[int, int]
"""How far a request has come: it differs after any news of it. See `OutputSink.progress`."""


class Crashes:
    """How often in a row each request was in an engine that ended, without any news of the request in between.

    Requests are known by their readers. Of all engines of a client.
    """

    def __init__(self, most: int = MAX_REQUEST_CRASHES) -> None:
        """After so many a request is a suspect; 0: no request goes on."""
        self.most = most
        self._known: WeakKeyDictionary[Any, tuple[int, Progress]] = WeakKeyDictionary()

    def __contains__(self, reader: Any) -> bool:
        """Whether the request was in an engine that ended."""
        return reader in self._known

    def count(self, reader: Any, progress: Progress) -> int:
        """The engine that had the request has ended once more; how often in a row."""
        known = self._known.get(reader)
        times = 1 if known is None or known[1] != progress else known[0] + 1
        self._known[reader] = times, progress
        return times

    def is_silent(self, reader: Any, progress: Progress) -> bool:
        """Whether there is no news of the request from the engine that has it."""
        known = self._known.get(reader)
        return progress == (known[1] if known is not None else (len(reader.request.children), 0))

    def error(self, reader: Any, reason: EngineError) -> RequestFaultError:
        """The error of a request that is not tried again."""
        return RequestFaultError(
            f"the engine ended {self._known[reader][0]} times in a row while it had this request, which is not tried "
            f"again (max_request_crashes); at last: {reason}"
        )


class Sorted(NamedTuple):
    """The readers of requests whose engine has ended, by what becomes of them. Others wait for `Resumption.next`."""

    again: list[Any]
    """They go on at once."""
    guilty: list[Any]
    """They are not tried again."""


class Resumption:
    """Decides what goes on after the end of one engine. Belongs to an event loop.

    When an engine ends, any request without news from it may be the reason. If there was one alone, several times, it
    is to blame. If there were several, they are tried one at a time: each when there is news of all others that the
    engine has, and what is new waits for its turn as well. One that brings news is free.
    """

    def __init__(self, in_flight: InFlight, crashes: Crashes, progress: Callable[[str], Progress]) -> None:
        """`progress` tells how far a request in flight has come."""
        self._in_flight, self._crashes, self._progress = in_flight, crashes, progress
        self._held: deque[Any] = deque()
        self._silent: list[Any] = []  # While some are held: what the engine has, without news of it.
        self._pinned: WeakSet[Any] = WeakSet()

    @property
    def is_trying(self) -> bool:
        """Whether requests are tried one at a time."""
        return bool(self._held)

    def pin(self, reader: Any) -> None:
        """The request asked for this engine: it waits for the next one, even where others live."""
        self._pinned.add(reader)

    def may_move(self, reader: Any) -> bool:
        """Whether another engine may go on with the request."""
        return reader not in self._pinned

    def hold(self, reader: Any) -> None:
        """Let a request wait for its turn, while others are tried."""
        self._held.append(reader)

    def forget(self, reader: Any) -> None:
        """Another engine goes on with the request, which does not wait for its turn here any more."""
        if reader in self._held:
            self._held.remove(reader)

    def held(self) -> set[str]:
        """The requests that no engine has, because others are tried."""
        return {reader.request.request_id for reader in self._held if self._is_there(reader)}

    def sort(self, names: Iterable[str]) -> Sorted:
        """The engine has ended which had these requests, in their order."""
        crashes, most = self._crashes, self._crashes.most
        had = {self._in_flight[name]: self._progress(name) for name in names}
        silent = [reader for reader, progress in had.items() if crashes.is_silent(reader, progress)]
        times = {reader: crashes.count(reader, progress) for reader, progress in had.items()}
        if most == 0:
            return Sorted([], list(had))
        suspects = [reader for reader in silent if times[reader] >= most]
        guilty = suspects if len(silent) == 1 else []
        if self.is_trying or len(suspects) > len(guilty):
            self._held.extendleft(reversed([reader for reader in silent if reader not in guilty]))
        held = set(self._held)
        self._silent = [reader for reader in had if reader not in held and reader not in guilty]
        return Sorted(list(self._silent), guilty)

    def next(self) -> Any:
        """The reader of a request that is to be tried now; None while another one is, and when there is none left."""
        self._silent = [reader for reader in self._silent if self._is_there(reader) and self._is_silent(reader)]
        while self._held and not self._silent:
            reader = self._held.popleft()
            if self._is_there(reader):
                self._silent = [reader]
                return reader
        return None

    def _is_silent(self, reader: Any) -> bool:
        return self._crashes.is_silent(reader, self._progress(reader.request.request_id))

    def _is_there(self, reader: Any) -> bool:
        # The name may be that of a newer request by now.
        return self._in_flight.get(reader.request.request_id) is reader
