"""What the engine does for requests with images: they wait until their images are encoded, and run then."""

from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Self

import numpy as np

from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.feature import StepFeature
from jaxllm.executor.media_calls import MediaCalls
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.media.grid_positions import grid_offsets
from jaxllm.media.pool import MediaPool
from jaxllm.requests.media import MediaItem
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.rotary_offsets import RotaryOffsets
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler


class MediaRequests(StepFeature):
    """Encodes images before the steps that need them, so many patches a step, in the order in which requests come.

    A request whose images are all encoded or under way may run: the devices do one thing after the other. Its images
    stay in the pool until its prompt is computed. When it is preempted it waits for them once more.
    """

    hold_reason = "media"

    def __init__(
        self,
        faults: Faults,
        pool: MediaPool,
        calls: MediaCalls,
        scheduler: "Scheduler | ShardedScheduler",
        *,
        patches_per_step: int,
        grid_merge: int | None = None,
    ) -> None:
        """Between two steps crops are encoded until they have at least `patches_per_step` patches.

        `grid_merge` patches each way are a row, where rows are rotated by their places in a grid.
        """
        super().__init__(faults)
        self.pool = pool
        self._calls, self._scheduler, self._patches_per_step = calls, scheduler, patches_per_step
        self._waiting: deque[Request] = deque()
        self._under_way: Iterator[int] | None = None
        """Encodes what the first waiting request needs, crop by crop."""
        self._pinned: set[Request] = set()
        self._slots: dict[Request, list[int]] = {}
        """Slots whose row of the table names rows of the pool, by the leading request."""
        self._rows = np.zeros_like(scheduler.table.token_ids)
        self._has_media = np.zeros(len(self._rows), np.bool_)
        scheduler.table.media_rows = self._rows
        self._offsets = None if grid_merge is None else RotaryOffsets(*self._rows.shape)
        self._grid_merge = grid_merge
        scheduler.table.rotary_offsets = self._offsets

    @classmethod
    def of(
        cls, resolved: ResolvedConfig, runner: Runner, scheduler: "Scheduler | ShardedScheduler", faults: Faults
    ) -> Self:
        """For an engine of this configuration, whose model sees images."""
        tower = resolved.model.tower
        assert tower is not None
        pool, calls = MediaPool(resolved.media_rows), MediaCalls(runner.calls, tower)
        merge = tower.merge if resolved.model.has_grid_positions else None
        return cls(faults, pool, calls, scheduler, patches_per_step=resolved.max_num_batched_tokens, grid_merge=merge)

    def handles(self, request: Request) -> bool:
        """Whether the request has images."""
        return request.media is not None

    def prepare(self, request: Request) -> None:
        """A request that is preempted waits for its images once more."""
        request.hold_again = (*request.hold_again, self.hold_reason)

    def on_added(self, request: Request) -> None:
        """Wait for the images."""
        self._waiting.append(request)

    def on_ended(self, request: Request) -> None:
        """Its images may go."""
        if request.media is not None:
            self._forget(request)

    def on_step_begin(self) -> None:
        """Encode what the next requests need."""
        left = self._patches_per_step
        while self._waiting and left > 0:
            request = self._waiting[0]
            done = 0
            with self.faults.guard(request):
                if self._under_way is None and not self._pin(request):
                    return  # There is room when others have read their prompts.
                assert self._under_way is not None
                done = next(self._under_way, 0)
                left -= done
            if not done:
                # Everything is on its way, or has failed, which ends the request.
                self._under_way = None
                self._waiting.popleft()
                self._scheduler.release(request, self.hold_reason)

    def on_scheduled(self, plan: StepPlan) -> None:
        """Say where the rows of admitted requests are, and let go of images whose prompt is computed by the step."""
        for request in plan.preempted:
            if request in self.requests:
                self._wait_again(request)
        for request in plan.admitted:
            if request.media is not None:
                leader = request if request.group is None else request.group.leader
                self._rows[request.slot, request.media.places] = 1 + self.pool.rows(request.media.items)
                self._has_media[request.slot] = True
                if self._offsets is not None:
                    assert self._grid_merge is not None
                    self._offsets.set(request.slot, *grid_offsets(request.media, self._grid_merge))
                self._slots.setdefault(leader, []).append(request.slot)
        with_media = self._has_media[plan.slots]
        if not with_media.any():
            return
        ends = plan.starts + plan.num_new_tokens
        for row in with_media.nonzero()[0].tolist():
            request = plan.requests[row]
            if request in self._pinned and request.media is not None and ends[row] >= request.media.end:
                self._unpin(request)

    def forget_images(self) -> None:
        """What is in the pool counts no more. All requests wait for their images again."""
        for request in sorted(self.requests, key=attrgetter("arrival")):
            self._wait_again(request)
        self.pool.clear()

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
            yield from self._calls.encode(item, self.pool.kept_rows(item))
            self.pool.complete(item)

    def _wait_again(self, request: Request) -> None:
        self._forget(request)
        self._waiting.append(request)

    def _forget(self, request: Request) -> None:
        if self._waiting and self._waiting[0] is request:
            self._under_way = None
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._pinned:
            self._unpin(request)
        for slot in self._slots.pop(request, ()):
            self._rows[slot] = 0
            self._has_media[slot] = False
            if self._offsets is not None:
                self._offsets.clear(slot)

    def _unpin(self, request: Request) -> None:
        assert request.media is not None
        self._pinned.remove(request)
        self.pool.unpin(request.media.items)
