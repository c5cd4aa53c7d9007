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
        times = 1 if self.has_news(reader, progress) else self._known[reader][0] + 1
        self._known[reader] = times, progress
        return times

    def has_news(self, reader: Any, progress: Progress) -> bool:
        """Whether the request has come further since then."""
        known = self._known.get(reader)
        return known is None or known[1] != progress

    def error(self, reader: Any, reason: EngineError) -> RequestFaultError:
        """The error of a request that is not tried again."""
        return RequestFaultError(
            f"the engine ended {self._known[reader][0]} times in a row while it had this request, which is not tried "
            f"again (max_request_crashes); at last: {reason}"
        )


class Sorted(NamedTuple):
    """The readers of requests whose engine has ended, by what becomes of them. Suspects wait for `Resumption.next`."""

    again: list[Any]
    """They go on at once."""
    guilty: list[Any]
    """They are not tried again."""


class Resumption:
    """Decides what goes on after the end of one engine. Belongs to an event loop.

    Whatever runs when an engine ends may be the reason. A request is a suspect when this was so several times without
    any news of it. If there is one, it is to blame. If there are several, the others among them were there by chance:
    so they are tried one at a time, alongside those that are none. Whichever is on trial when the engine ends is to
    blame; one that brings news is free.
    """

    def __init__(self, in_flight: InFlight, crashes: Crashes) -> None:
        self._in_flight, self._crashes = in_flight, crashes
        self._held: deque[Any] = deque()
        self._on_trial: Any = None
        self._pinned: WeakSet[Any] = WeakSet()

    @property
    def is_trying(self) -> bool:
        """Whether there are suspects."""
        return self._on_trial is not None or bool(self._held)

    def pin(self, reader: Any) -> None:
        """The request asked for this engine: it waits for the next one, even where others live."""
        self._pinned.add(reader)

    def may_move(self, reader: Any) -> bool:
        """Whether another engine may go on with the request."""
        return reader not in self._pinned

    def held(self) -> set[str]:
        """The requests that no engine has, because others are on trial."""
        return {reader.request.request_id for reader in self._held if self._is_there(reader)}

    def sort(self, names: Iterable[str], progress: Callable[[str], Progress]) -> Sorted:
        """The engine has ended which had these requests, in their order, among others that it did not have yet."""
        held = self.held()
        counts = {
            reader: self._crashes.count(reader, progress(name))
            for name, reader in ((name, self._in_flight[name]) for name in names if name not in held)
        }
        most = self._crashes.most
        suspects = [reader for reader, times in counts.items() if times >= most]
        guilty: list[Any] = []
        if most == 0 or len(suspects) == 1:
            guilty = suspects
        elif self._on_trial in suspects:
            guilty = [self._on_trial]
        if self._on_trial in counts:
            self._on_trial = None
        self._held += [reader for reader in suspects if reader not in guilty]
        return Sorted([reader for reader, times in counts.items() if times < most], guilty)

    def next(self, progress: Callable[[str], Progress]) -> Any:
        """The reader of a request that is to be tried now; None while another one is, and when there is none left."""
        reader = self._on_trial
        if reader is not None and self._is_there(reader):
            name = reader.request.request_id
            if not self._crashes.has_news(reader, progress(name)):
                return None
        self._on_trial = None
        while self._held:
            reader = self._held.popleft()
            if self._is_there(reader):
                self._on_trial = reader
                return reader
        return None

    def _is_there(self, reader: Any) -> bool:
        # The name may be that of a newer request by now.
        return self._in_flight.get(reader.request.request_id) is reader
