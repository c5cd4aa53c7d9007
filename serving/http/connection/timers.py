"""How long a client may take, as nginx and Apache have it: for headers, for a body, and for reading its response."""

from dataclasses import dataclass

from jaxllm.serving.http.limits import HttpLimits


@dataclass(frozen=True)
class Overdue:
    """A client took too long. What to tell it, nothing where it began nothing; with `aborts`, it does not read."""

    message: str = ""
    aborts: bool = False


class RequestTimer:
    """The clock of one connection. It is looked at every second or so; in between, it only takes notes."""

    __slots__ = ("_begun", "_heard", "_heard_bytes", "_in_body", "_limits", "_looked", "_since", "_unsent",
                 "_unsent_since", "_waited", "whole")  # fmt: skip

    def __init__(self, limits: HttpLimits, now: float) -> None:
        self._limits = limits
        self.whole = False
        """Whether the last request was received to its end."""
        self._in_body = False
        self._begun = False
        """Whether anything of the request has arrived."""
        self._since = self._heard = self._looked = self._unsent_since = now
        self._waited = 0.0
        """Seconds that the body takes, without those in which the server did not want it."""
        self._heard_bytes = 0
        self._unsent = 0

    def heard(self, now: float, size: int) -> None:
        """Bytes arrived."""
        self._heard = now
        self._heard_bytes += size

    def begin(self) -> None:
        """A request begins in the bytes just heard; the first one has its time from the connection's begin."""
        if self.whole:
            self._since = self._heard
        self._begun, self.whole, self._in_body = True, False, False

    def headers_complete(self) -> None:
        """The body begins."""
        self._in_body, self._waited, self._heard_bytes = True, 0.0, 0

    def message_complete(self) -> None:
        """The request is there."""
        self.whole, self._in_body, self._since = True, False, self._heard

    def answered(self, now: float) -> None:
        """The response is written; the next request may come."""
        self._since = now

    def overdue(self, now: float, unsent: int, *, answering: bool, paused: bool) -> Overdue | None:
        """Whether the client takes too long. `unsent` bytes wait for it.

        `answering`: a response is being made; `paused`: nothing is read from the client for now.
        """
        passed, self._looked = now - self._looked, now
        if not unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if 0 < self._limits.send_seconds < now - self._unsent_since:
            return Overdue(aborts=True)
        if unsent or paused or (answering and not self._in_body):
            self._heard = self._since = now
            return None
        if self._in_body:
            return self._slow_body(now, passed)
        limit = self._limits.idle_seconds if self.whole else self._limits.headers_seconds
        if 0 < limit < now - self._since:
            message = f"the headers of the request took more than {limit:g} s (--timeout-headers)"
            return Overdue(message if self._begun and not self.whole else "")
        return None

    def _slow_body(self, now: float, passed: float) -> Overdue | None:
        self._waited += passed
        limit, rate = self._limits.body_seconds, self._limits.body_rate
        if 0 < limit < now - self._heard:
            return Overdue(f"nothing of the body came for more than {limit:g} s (--timeout-body)")
        if rate and self._waited > limit + self._heard_bytes / rate:
            return Overdue(f"the body came with less than {rate} bytes per second (--min-body-rate)")
        return None
