"""Requests whose host code has failed: each ends alone, with a log line, and the step goes on."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from jax.errors import JaxRuntimeError

from jaxllm.errors import EngineError
from jaxllm.models.errors import is_failure
from jaxllm.requests.request import Request

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Faults:
    """Collects the requests that an unexpected exception was caught for, until the engine ends them.

    They cannot end at once: between scheduling and dispatching a step their slots must stay theirs.
    """

    def __init__(self) -> None:
        self.requests: dict[Request, None] = {}
        """Requests recorded since the last `take`, in order."""

    def guard(self, request: Request) -> "Guard":
        """A context in which an exception is this request's fault, and is not raised."""
        return Guard(self, request)

    def record(self, request: Request, error: BaseException) -> None:
        """A request must end because of this exception."""
        # The leader of a group of sequences stands for the request.
        request = request if request.group is None else request.group.leader
        if request in self.requests:
            return
        log_fault(request.request_id, error)
        self.requests[request] = None

    def take(self) -> list[Request]:
        """The requests recorded since the last call."""
        found, self.requests = list(self.requests), {}
        return found

    def map_requests(self, requests: Sequence[Request], work: Callable[[Request], Result]) -> list[Result | None]:
        """Apply `work` to each request; None where it failed, which is recorded."""
        results: list[Result | None] = [None] * len(requests)
        for index, request in enumerate(requests):
            with self.guard(request):
                results[index] = work(request)
        return results


class Guard:
    """See `Faults.guard`."""

    __slots__ = ("_faults", "_request", "failed")

    def __init__(self, faults: Faults, request: Request) -> None:
        self._faults, self._request = faults, request
        self.failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not is_of_one_request(error):
            return False
        assert error is not None
        self.failed = True
        self._faults.record(self._request, error)
        return True


def is_of_one_request(error: BaseException | None) -> bool:
    """Whether an exception in host code for a request leaves the engine as it was: not where the step itself failed.

    A panic of a library, such as the one that follows grammars, is one of a request as well.
    """
    return error is not None and is_failure(error) and not isinstance(error, (EngineError, JaxRuntimeError))


def log_fault(request_id: str, error: BaseException) -> None:
    """Say that a request ends because of this exception."""
    logger.error(
        "an internal error ends request %s; all others continue",
        request_id,
        exc_info=error,
        extra={"request_id": request_id},
    )


@contextmanager
def fault_of_step(doing: str) -> Iterator[None]:
    """Calls of the device: what fails there ends the engine, since nobody knows what is left of the device state."""
    try:
        yield
    except EngineError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise EngineError(f"{doing} failed: {type(error).__name__}: {error}") from error
