"""What a trace of a request is told once, at the request's end. Who writes traces belongs to folders above."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TracedSequence:
    """When things happened to one sequence, in seconds of the monotonic clock; None: it did not come that far.

    `num_tokens` are those that the engine generated, `reason` is why it ended, as in `FinishedRequest`.
    """

    reason: str
    scheduled: float | None
    first_token: float | None
    last_token: float | None
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """A request that ended: its tokens, and when it arrived, was tokenized and ended (seconds, monotonic clock).

    `params` are the request's sampling or pooling parameters.
    """

    arrival: float
    tokenized: float
    ended: float
    prompt_tokens: int
    cached_tokens: int
    params: Any
    sequences: tuple[TracedSequence, ...]


class RequestTrace(Protocol):
    """The trace of a request in flight."""

    def end(self, request: TracedRequest) -> None:
        """The request is over. Called once, on the event loop."""


class Traceable(Protocol):
    """A request to the engine, of whatever kind."""

    arrival_time: float
    trace: RequestTrace | None

    @property
    def children(self) -> Sequence[Any]:
        """What the engine runs for it."""
