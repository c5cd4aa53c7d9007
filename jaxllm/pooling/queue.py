"""Which texts run in a step: the first that came, as many as fit."""

import heapq
import itertools
from collections.abc import Iterable

from jaxllm.pooling.request import PoolingRequest


class PoolingQueue:
    """Texts that wait. A step takes them in order until one does not fit; with priorities, the lowest number first."""

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, by_priority: bool) -> None:
        self._rows, self._tokens, self._by_priority = max_num_seqs, max_num_batched_tokens, by_priority
        self._heap: list[tuple[int, int, PoolingRequest]] = []
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
        priority = request.priority if self._by_priority else 0
        heapq.heappush(self._heap, (priority, next(self._arrivals), request))
        self._waiting[request.request_id] = request

    def remove(self, request_ids: Iterable[str]) -> list[str]:
        """Forget texts; returns the ids of those that waited."""
        return [each for each in request_ids if self._waiting.pop(each, None) is not None]

    def take(self) -> list[PoolingRequest]:
        """The texts of the next step; those of one token first, as kernels want them."""
        taken: list[PoolingRequest] = []
        left = self._tokens
        while self._heap and len(taken) < self._rows:
            request = self._heap[0][2]
            # One that was removed stays in the heap until it comes to the front.
            if self._waiting.get(request.request_id) is request:
                if len(request.prompt_token_ids) > left:
                    break
                left -= len(request.prompt_token_ids)
                taken.append(self._waiting.pop(request.request_id))
            heapq.heappop(self._heap)
        return sorted(taken, key=lambda each: len(each.prompt_token_ids) != 1)
