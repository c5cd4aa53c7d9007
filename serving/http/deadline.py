"""The time by which a request is to be answered, wherever it is by then: held by a clock that starts at its headers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from jaxllm.errors import RequestError, RequestTimeoutError

_DEADLINE: Final = "jaxllm.deadline"
"""In the scope of a request that has one."""
FIELD: Final = "timeout"
"""The field of bodies that asks for less time than the operator allows."""


class Results(Protocol):
    """The results of a request to the engine, which are still to come: a stream, or the one of a pooling model."""

    on_end: Callable[[Any], None] | None
    """Called once, when nothing more comes."""

    @property
    def has_begun(self) -> bool:
        """Whether a token has come."""


class Deadline:
    """The clock of one request. Belongs to an event loop.

    Until the request waits for results, the handler is cancelled when the time is over. From then on the results end
    with an error, also those that nobody waits for, and the engine frees their pages.
    """

    def __init__(
        self,
        seconds: float,
        end: Callable[[Any, RequestTimeoutError], None],
        count: Callable[[str], None],
    ) -> None:
        """`seconds` are the operator's limit, 0: none. `end` ends results, `count` is told one of
        `PLACES` of `telemetry.http`.
        """
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._most, self._seconds = seconds, 0.0
        self._end, self._count = end, count
        self._handler: asyncio.Timeout | None = None
        self._results: set[Results] = set()
        self._timer: asyncio.TimerHandle | None = None
        if seconds:
            self._start(seconds)

    def shorten(self, seconds: float) -> None:
        """The request asks for this time. Raises `RequestError` for more than the operator allows, and for nothing."""
        if not seconds > 0:
            raise RequestError(f"{FIELD}={seconds:g}: must be more than 0 seconds", FIELD)
        if 0 < self._most < seconds:
            raise RequestError(
                f"{FIELD}={seconds:g}: this server allows at most {self._most:g} s (--request-timeout)", FIELD
            )
        self._start(seconds)

    def follow(self, results: Iterable[Results]) -> None:
        """The request waits for these. Nothing happens where it has no limit."""
        if not self._seconds:
            return
        for each in results:
            self._results.add(each)
            each.on_end = self._forget
        if self._timer is None:
            # A transcription asks the engine again and again.
            self._start(self._seconds)

    def check(self) -> None:
        """Raise `RequestTimeoutError` if the time is over."""
        if self._seconds and self._loop.time() >= self._began + self._seconds:
            raise self._error()

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Within it runs the handler. Raises `RequestTimeoutError`."""
        try:
            async with asyncio.timeout(None) as self._handler:
                yield
        except TimeoutError:
            if not self._handler.expired():  # type: ignore[union-attr]
                raise
            raise self._error() from None
        finally:
            self._handler = None
            self._settle()

    def _start(self, seconds: float) -> None:
        self._seconds = seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._began + seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._results:
            begun = any(each.has_begun for each in self._results)
            self._count("decode" if begun else "first_token")
            for each in list(self._results):
                self._end(each, self._error())
        elif self._handler is not None:
            self._count("preparation")
            self._handler.reschedule(self._loop.time())

    def _error(self) -> RequestTimeoutError:
        flag = " (--request-timeout)" if self._seconds == self._most else ""
        return RequestTimeoutError(f"the request was not answered within {self._seconds:g} s{flag}")

    def _forget(self, ended: Results) -> None:
        self._results.discard(ended)
        self._settle()

    def _settle(self) -> None:
        """Stop the clock if nothing is left that it could end."""
        if self._handler is None and not self._results and self._timer is not None:
            self._timer.cancel()
            self._timer = None


def begin_deadline(scope: MutableMapping[str, Any], deadline: Deadline) -> Deadline:
    """Give a request its deadline."""
    scope[_DEADLINE] = deadline
    return deadline


def shorten_deadline(scope: Mapping[str, Any], body: object) -> None:
    """Obey the body's `timeout`, if it has one. Raises `RequestError`."""
    seconds = getattr(body, FIELD, None)
    if seconds is not None and _DEADLINE in scope:
        deadline: Deadline = scope[_DEADLINE]
        deadline.shorten(seconds)


def deadline_of(scope: Mapping[str, Any]) -> Deadline | None:
    """The deadline of a request; None for one that the engine does not compute."""
    found: Deadline | None = scope.get(_DEADLINE)
    return found
