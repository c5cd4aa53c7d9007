"""Which texts run in a step: as many as fit, shared between owners."""

import itertools
from collections.abc import Iterable

from jaxllm.pooling.request import PoolingRequest
from jaxllm.scheduler.fair_queue import FairQueue
from jaxllm.scheduler.shares import DEBT_STEPS, Shares


class PoolingQueue:
    """Texts that wait. A step takes them in order until one does not fit.

    With priorities, the lowest number first; then the owner that was given the fewest tokens; then by arrival.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, by_priority: bool) -> None:
        self._rows, self._tokens, self._by_priority = max_num_seqs, max_num_batched_tokens, by_priority
        self._shares = Shares(most_debt=DEBT_STEPS * max_num_batched_tokens)
        self._queue: FairQueue[PoolingRequest] = FairQueue(self._shares)
        self._waiting: dict[str, PoolingRequest] = {}
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        """Texts that wait."""
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def ids(self) -> set[str]:
        """Ids of the texts that wait."""
        return set(self._waiting)

    def add(self, request: PoolingRequest) -> None:
        """Let a text wait. It is not longer than a step."""
        assert len(request.prompt_token_ids) <= self._tokens
        request.share = self._shares.enter(request.owner)
        priority = request.priority if self._by_priority else 0
        self._queue.push(request, request.share, priority, next(self._arrivals))
        self._waiting[request.request_id] = request

    def remove(self, request_ids: Iterable[str]) -> list[PoolingRequest]:
        """Forget texts; returns those that waited."""
        removed = []
        for each in request_ids:
            request = self._waiting.pop(each, None)
            if request is not None:
                self._queue.remove(request)
                self._shares.leave(request.share)
                removed.append(request)
        return removed

    def take(self) -> list[PoolingRequest]:
        """The texts of the next step; those of one token first, as kernels want them."""
        taken: list[PoolingRequest] = []
        left = self._tokens
        while len(taken) < self._rows and (request := self._queue.peek()) is not None:
            length = len(request.prompt_token_ids)
            if length > left:
                break
            left -= length
            taken.append(self._waiting.pop(request.request_id))
            self._shares.charge(request.share, length)
            self._queue.take(request)
        # An owner keeps its account while the others of this step are chosen.
        for request in taken:
            self._shares.leave(request.share)
        return sorted(taken, key=lambda each: len(each.prompt_token_ids) != 1)
