"""What the engine does for requests with sound: they wait until their window is encoded, and run then."""

from collections.abc import Iterator
from typing import Self

import numpy as np

from jaxllm.engine.features.encoded_media import EncodedMedia
from jaxllm.engine.features.faults import Faults
from jaxllm.executor.media_calls import SoundCalls
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Runner
from jaxllm.media.pool import MediaPool
from jaxllm.requests.media import MediaItem
from jaxllm.requests.request import Request
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler


class SoundRequests(EncodedMedia):
    """Encodes windows of sound. A window keeps its place until its request ends: every token of an answer hears it."""

    def __init__(
        self,
        faults: Faults,
        pool: MediaPool,
        calls: SoundCalls,
        scheduler: "Scheduler | ShardedScheduler",
        *,
        frames_per_step: int,
    ) -> None:
        """`pool` has a row for each window. Between two steps windows of at least so many frames are encoded."""
        super().__init__(faults, pool, scheduler, frames_per_step)
        self._calls = calls
        self._pages = np.zeros(len(scheduler.table.token_ids), np.int32)
        scheduler.table.cross_pages = self._pages

    @classmethod
    def of(
        cls,
        resolved: ResolvedConfig,
        runner: Runner,
        scheduler: "Scheduler | ShardedScheduler",
        faults: Faults,
        num_pages: int,
    ) -> Self:
        """For an engine of this configuration, whose scheduler hands out `num_pages` of each data shard."""
        calls = SoundCalls(runner.calls, num_pages, resolved.pages_per_window)
        frames = resolved.max_num_batched_tokens
        return cls(faults, MediaPool(resolved.sound_windows), calls, scheduler, frames_per_step=frames)

    def encode(self, item: MediaItem) -> Iterator[int]:
        """See `EncodedMedia`."""
        yield self._calls.encode(item, int(self.pool.kept_rows(item)[0]))

    def admit(self, request: Request) -> None:
        """See `EncodedMedia`."""
        assert request.media is not None
        (item,) = request.media.items
        self._pages[request.slot] = self._calls.page_of(int(self.pool.kept_rows(item)[0]))

    def clear(self, slot: int) -> None:
        """See `EncodedMedia`."""
        self._pages[slot] = 0
