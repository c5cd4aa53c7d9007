"""What the engine does for requests with media: they wait until these are encoded, and run then."""

from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.feature import StepFeature
from jaxllm.media.pool import MediaPool
from jaxllm.requests.media import MediaItem
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler


class EncodedMedia(StepFeature):
    """Encodes media before the steps that need them, so much a step, in the order in which requests come.

    A request whose media are all encoded or under way may run: the devices do one thing after the other. When it is
    preempted it waits for them once more. Kinds derive from it: they say how an item is encoded, what admitted requests
    must know, and when a request needs its media no more, at its end or before.
    """

    hold_reason = "media"

    def __init__(
        self, faults: Faults, pool: MediaPool, scheduler: "Scheduler | ShardedScheduler", work_per_step: int
    ) -> None:
        """Between two steps items are encoded, part by part, until at least `work_per_step` is done."""
        super().__init__(faults)
        self.pool = pool
        self._scheduler, self._work_per_step = scheduler, work_per_step
        self._waiting: deque[Request] = deque()
        self._under_way: Iterator[int] | None = None
        """Encodes what the first waiting request needs, part by part."""
        self._pinned: set[Request] = set()
        self._slots: dict[Request, list[int]] = {}
        """Slots that know where media are, by the leading request."""

    def encode(self, item: MediaItem) -> Iterator[int]:
        """Encode an item, and give the work that each part of it was, after it was sent."""
        raise NotImplementedError

    def admit(self, request: Request) -> None:
        """Say where the media of a request are that has a slot."""
        raise NotImplementedError

    def clear(self, slot: int) -> None:
        """A slot has no media any more."""
        raise NotImplementedError

    def handles(self, request: Request) -> bool:
        """Whether the request has media."""
        return request.media is not None

    def prepare(self, request: Request) -> None:
        """A request that is preempted waits for its media once more."""
        request.hold_again = (*request.hold_again, self.hold_reason)

    def on_added(self, request: Request) -> None:
        """Wait for the media."""
        self._waiting.append(request)

    def on_ended(self, request: Request) -> None:
        """Its media may go."""
        if request.media is not None:
            self._forget(request)

    def on_step_begin(self) -> None:
        """Encode what the next requests need."""
        left = self._work_per_step
        while self._waiting and left > 0:
            request = self._waiting[0]
            done = 0
            with self.faults.guard(request):
                if self._under_way is None and not self._pin(request):
                    return  # There is room when others need theirs no more.
                assert self._under_way is not None
                done = next(self._under_way, 0)
                left -= done
            if not done:
                # Everything is on its way, or has failed, which ends the request.
                self._under_way = None
                self._waiting.popleft()
                self._scheduler.release(request, self.hold_reason)

    def on_scheduled(self, plan: StepPlan) -> None:
        """Say where the media of admitted requests are."""
        for request in plan.preempted:
            if request in self.requests:
                self._wait_again(request)
        for request in plan.admitted:
            if request.media is not None:
                leader = request if request.group is None else request.group.leader
                self.admit(request)
                self._slots.setdefault(leader, []).append(request.slot)

    def forget_all(self) -> None:
        """What is in the pool counts no more. All requests wait for their media again."""
        for request in sorted(self.requests, key=attrgetter("arrival")):
            self._wait_again(request)
        self.pool.clear()

    def unpin(self, requests: Iterable[Request]) -> None:
        """These requests need their media no more."""
        for request in requests:
            if request in self._pinned:
                assert request.media is not None
                self._pinned.remove(request)
                self.pool.unpin(request.media.items)

    def _pin(self, request: Request) -> bool:
        assert request.media is not None
        missing = self.pool.pin(request.media.items)
        if missing is None:
            return False
        self._pinned.add(request)
        self._under_way = self._encode(missing)
        return True

    def _encode(self, items: list[MediaItem]) -> Iterator[int]:
        for item in items:
            yield from self.encode(item)
            self.pool.complete(item)

    def _wait_again(self, request: Request) -> None:
        self._forget(request)
        self._waiting.append(request)

    def _forget(self, request: Request) -> None:
        if self._waiting and self._waiting[0] is request:
            self._under_way = None
        if request in self._waiting:
            self._waiting.remove(request)
        self.unpin([request])
        for slot in self._slots.pop(request, ()):
            self.clear(slot)
