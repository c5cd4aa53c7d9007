"""Texts of a pooling engine that wait for their images to be encoded."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxllm.engine.features.faults import is_of_one_request, log_fault
from jaxllm.errors import JaxLLMError, RequestFaultError, fault_message
from jaxllm.executor.media_calls import MediaCalls
from jaxllm.media.pool import MediaPool
from jaxllm.pooling.request import PoolingRequest
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.runner import PoolingRunner
from jaxllm.requests.media import MediaItem


@dataclass(frozen=True)
class Encoded:
    """A text whose images are in the pool, or an error in place of that."""

    request: PoolingRequest
    error: JaxLLMError | None = None


class MediaWaiting:
    """Encodes images before the steps that need them, crop by crop, in the order in which texts come.

    An image is kept in the pool until the step of its text has begun, and after that while there is room. Texts without
    images do not wait here.
    """

    def __init__(self, pool: MediaPool, calls: MediaCalls, patches_per_step: int) -> None:
        """Between two steps crops are encoded until they have at least `patches_per_step` patches."""
        self.pool = pool
        self._calls, self._patches_per_step = calls, patches_per_step
        self._held: deque[PoolingRequest] = deque()
        self._under_way: Iterator[int] | None = None
        """Encodes what the first text needs, crop by crop."""
        self._pinned: set[PoolingRequest] = set()

    @classmethod
    def of(cls, resolved: ResolvedPoolingConfig, runner: PoolingRunner) -> "MediaWaiting | None":
        """For an engine of this configuration; None where it takes no images."""
        common = resolved.common
        if not common.sees_images:
            return None
        assert common.model.tower is not None
        calls = MediaCalls(runner.encode, common.model.tower)
        return cls(MediaPool(common.media_rows), calls, common.max_num_batched_tokens)

    def __len__(self) -> int:
        """Texts that wait here."""
        return len(self._held)

    def ids(self) -> set[str]:
        """Ids of the texts that wait here."""
        return {each.request_id for each in self._held}

    def add(self, request: PoolingRequest) -> None:
        """Have the images of a text encoded."""
        self._held.append(request)

    def remove(self, request_ids: Iterable[str]) -> list[PoolingRequest]:
        """Forget texts; returns those that waited here."""
        names = set(request_ids)
        found = [each for each in self._held if each.request_id in names]
        for request in found:
            if request is self._held[0]:
                self._under_way = None
            self._held.remove(request)
            self.release(request)
        return found

    def ready(self) -> Iterator[Encoded]:
        """Encode as much as comes between two steps; gives the texts that need no more, or cannot have it."""
        left = self._patches_per_step
        while self._held and left > 0:
            request, error, done = self._held[0], None, 0
            try:
                if self._under_way is None and not self._pin(request):
                    return  # There is room once the steps of others have begun.
                assert self._under_way is not None
                done = next(self._under_way, 0)
                left -= done
            except BaseException as raised:
                if not is_of_one_request(raised):
                    raise
                error = self._refused(request, raised)
            if done:
                continue
            self._under_way = None
            self._held.popleft()
            if error is None:
                assert request.media is not None
                request.media_rows = 1 + self.pool.rows(request.media.items)
            yield Encoded(request, error)

    def release(self, request: PoolingRequest) -> None:
        """A text needs its images no more: its step has begun, or it has ended."""
        if request in self._pinned:
            assert request.media is not None
            self._pinned.remove(request)
            self.pool.unpin(request.media.items)

    def _refused(self, request: PoolingRequest, raised: BaseException) -> JaxLLMError:
        self.release(request)
        if isinstance(raised, JaxLLMError):
            return raised
        log_fault(request.request_id, raised)
        return RequestFaultError(fault_message(request.request_id))

    def _pin(self, request: PoolingRequest) -> bool:
        assert request.media is not None
        missing = self.pool.pin(request.media.items)
        if missing is None:
            return False
        self._pinned.add(request)
        self._under_way = self._encode(missing)
        return True

    def _encode(self, items: list[MediaItem]) -> Iterator[int]:
        for item in items:
            yield from self._calls.encode(item, self.pool.kept_rows(item))
            self.pool.complete(item)
