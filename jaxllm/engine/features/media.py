"""What the engine does for requests with images: they wait until their images are encoded, and run then."""

from collections.abc import Iterator
from functools import partial
from typing import Self

import numpy as np

from jaxllm.engine.features.encoded_media import EncodedMedia
from jaxllm.engine.features.faults import Faults
from jaxllm.executor.media_calls import MediaCalls, SoundRowCalls
from jaxllm.executor.program_table import ENCODE
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


class MediaRequests(EncodedMedia):
    """Encodes images crop by crop, and sound window by window, so many patches or frames a step.

    They stay in the pool until their prompt is computed.
    """

    def __init__(
        self,
        faults: Faults,
        pool: MediaPool,
        calls: MediaCalls | None,
        sound_calls: SoundRowCalls | None,
        scheduler: "Scheduler | ShardedScheduler",
        *,
        patches_per_step: int,
        grid_merge: int | None = None,
    ) -> None:
        """Between two steps crops are encoded until they have at least `patches_per_step` patches.

        `grid_merge` patches each way are a row, where rows are rotated by their places in a grid.
        """
        super().__init__(faults, pool, scheduler, patches_per_step)
        self._calls, self._sound_calls = calls, sound_calls
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
        """For an engine of this configuration, whose model sees images, or hears as if these were images, or both."""
        pool, patches = MediaPool(resolved.media_rows), resolved.max_num_batched_tokens
        tower, sound = resolved.model.tower, resolved.model.sound
        heard = None if sound is None else SoundRowCalls(runner.calls, sound)
        if tower is None:
            return cls(faults, pool, None, heard, scheduler, patches_per_step=patches)
        merge = tower.merge if resolved.model.has_grid_positions else None
        calls = MediaCalls(partial(runner.calls.call_sized, ENCODE), tower)
        return cls(faults, pool, calls, heard, scheduler, patches_per_step=patches, grid_merge=merge)

    def encode(self, item: MediaItem) -> Iterator[int]:
        """See `EncodedMedia`."""
        calls = self._calls if item.features is None else self._sound_calls
        assert calls is not None
        return calls.encode(item, self.pool.kept_rows(item))

    def admit(self, request: Request) -> None:
        """See `EncodedMedia`."""
        assert request.media is not None
        self._rows[request.slot, request.media.places] = 1 + self.pool.rows(request.media.items)
        self._has_media[request.slot] = True
        if self._offsets is not None:
            assert self._grid_merge is not None
            self._offsets.set(request.slot, *grid_offsets(request.media, self._grid_merge))

    def clear(self, slot: int) -> None:
        """See `EncodedMedia`."""
        self._rows[slot] = 0
        self._has_media[slot] = False
        if self._offsets is not None:
            self._offsets.clear(slot)

    def on_scheduled(self, plan: StepPlan) -> None:
        """Let go also of images whose prompt is computed by the step."""
        super().on_scheduled(plan)
        with_media = self._has_media[plan.slots]
        if not with_media.any():
            return
        ends = plan.starts + plan.num_new_tokens
        for row in with_media.nonzero()[0].tolist():
            request = plan.requests[row]
            if request.media is not None and ends[row] >= request.media.end:
                self.unpin([request])
