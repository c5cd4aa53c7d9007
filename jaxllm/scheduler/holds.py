"""Requests that may not run yet, and why."""

from collections.abc import Iterable, Iterator

from jaxllm.requests.request import Request

HoldReason = str
"""What a request waits for, such as "grammar". Each holder has a reason of its own."""


class Holds:
    """Waiting requests with the reasons that keep them from running. One may run when its last reason is released."""

    def __init__(self) -> None:
        self._reasons: dict[Request, set[HoldReason]] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._reasons)

    def __contains__(self, request: Request) -> bool:
        return request in self._reasons

    def add(self, request: Request, reasons: Iterable[HoldReason]) -> None:
        """Hold a request for further reasons, one at least. A reason that it has already counts once."""
        self._reasons.setdefault(request, set()).update(reasons)
        assert self._reasons[request], "a request is held for no reason"

    def release(self, request: Request, reason: HoldReason) -> bool:
        """Take away a reason. True if it was the last one: the request may run, and is forgotten here.

        A request that is not held, or not for this reason, is left as it is: it may have ended meanwhile.
        """
        reasons = self._reasons.get(request)
        if reasons is None or reason not in reasons:
            return False
        reasons.remove(reason)
        if reasons:
            return False
        del self._reasons[request]
        return True

    def reasons(self, request: Request) -> frozenset[HoldReason]:
        """Why a request may not run; empty if it may."""
        return frozenset(self._reasons.get(request, ()))

    def remove(self, request: Request) -> bool:
        """Forget a request that has ended. Returns whether it was held."""
        return self._reasons.pop(request, None) is not None
