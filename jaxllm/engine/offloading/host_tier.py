"""The host tier in the steps of an engine: what is copied ahead after a step, and what has come back before one."""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxllm.engine.offloading.disk_tier import DiskTier
from jaxllm.engine.offloading.pace import Pace
from jaxllm.engine.offloading.transfers import Arrays, Loaded, Shapes, Transfers, num_bytes
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.program_table import GATHER_PAGES, GATHER_STATE, SCATTER_PAGES, SCATTER_STATE, ProgramRecord
from jaxllm.executor.runner import Runner
from jaxllm.executor.transfer_programs import staging_of, state_size
from jaxllm.kv.tiers.counts import OffloadCounts
from jaxllm.kv.tiers.loads import HOLD_REASON, Load
from jaxllm.kv.tiers.tier import Tier
from jaxllm.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from jaxllm.engine.transfer.exchange import Exchange

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
"""How long an engine with nothing else to do waits for a load at a time."""
COPY_SECONDS, URGENT_SECONDS = 0.05, 0.002
"""How often an engine without requests looks whether more of its copies are made: where nobody waits for them, or
another engine does."""
CLOSE_SECONDS = 3.0
"""Copies for files that an engine has not made when it ends are made for so long."""


class PageMover:
    """Dispatches what moves pages and states between the cache and arrays of their own, in the engine's thread.

    Of an engine in stages, each has an array with the pages of its own layers; their rows, one after the other, are
    those of an engine with one stage.
    """

    def __init__(self, runner: Runner, sizes: Sequence[int], whole: NamedSharding | None) -> None:
        """`sizes` are those of the programs, the smallest first; `whole` is where arrays are that are not split."""
        self._runner, self.least, self.most = runner, sizes[0], sizes[-1]
        pools = [calls.state.kv_cache.pages[0] for calls in runner.calls.every]
        self._stagings = [tuple(staging_of(pool, size) for pool in pools) for size in sizes]
        first = self._stagings[0][0]
        num_layers = sum(pool.shape[0] for pool in pools)
        self.page = jax.ShapeDtypeStruct((num_layers, *first.shape[2:]), first.dtype)
        """A page of all layers [L, ...]."""
        self.page_bytes = num_bytes(self.page)
        self.state_bytes = state_size(runner.calls.state.kv_cache.states)
        self.state = (jax.ShapeDtypeStruct((self.state_bytes,), np.uint8, sharding=whole),)

    def staging(self, count: int) -> Shapes:
        """The smallest arrays with so many pages, one of each stage."""
        return next(each for each in self._stagings if each[0].shape[0] >= count)

    def gather(self, pages: Sequence[int]) -> Arrays:
        """The contents of pages, a row for each, as they are after what is dispatched; an array of each stage."""
        size = self.staging(len(pages))[0].shape[0]
        places = _places(pages, size)
        return tuple(self._call(calls, GATHER_PAGES, size, *places) for calls in self._runner.calls.every)

    def scatter(self, arrays: Arrays, pages: Sequence[int]) -> None:
        """Write the first rows of each stage's array to pages, before what is dispatched later."""
        size = arrays[0].shape[0]
        places = _places(pages, size)
        for calls, array in zip(self._runner.calls.every, arrays, strict=True):
            self._call(calls, SCATTER_PAGES, size, *places, array)

    def gather_state(self, slot: int) -> jax.Array:
        """The states in a slot, as bytes."""
        with self._runner.watch.watching("a state on its way to the host"):
            result: jax.Array = self._runner.calls.call(GATHER_STATE, np.int32(slot))
        return result

    def scatter_state(self, array: jax.Array, slot: int) -> None:
        """Write the states of a slot from their bytes."""
        with self._runner.watch.watching("a state from the host"):
            self._runner.calls.call(SCATTER_STATE, np.int32(slot), array)

    def _call(self, calls: DeviceCalls, program: ProgramRecord, size: int, *arrays: Any) -> Any:
        with self._runner.watch.watching("pages on their way"):
            return calls.call_sized(program, size, *arrays)


class HostTier:
    """Belongs to an engine. Its thread calls everything; copying itself is done in others."""

    def __init__(
        self,
        tier: Tier,
        mover: PageMover,
        scheduler: Scheduler,
        transfers: Transfers,
        disk: DiskTier | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Takes over `disk`. `pace` is that of all who copy, where copies slow down what is computed."""
        self._tier, self._mover, self._scheduler, self._transfers = tier, mover, scheduler, transfers
        self._pace = pace
        self.disk = disk
        self.exchange: Exchange | None = None
        """What goes to other engines and comes from them, if anything does."""
        tier.loads.start = self._start
        if disk is not None:
            tier.use_files(disk).start = disk.promote
            tier.on_used = disk.writer.used
            disk.writer.tells = tier.events is not None

    def on_step_begin(self) -> None:
        """Write to the cache what has come from the host, and let requests run that have waited for it."""
        for each in self._transfers.stored():
            for copy, checksum in zip(each.copies, each.checksums, strict=True):
                self._tier.host.end_write(copy, checksum)
                if self.disk is not None and copy.state == "ready":
                    self.disk.offer(copy)
        if self.disk is not None:
            self._take_promoted(self.disk)
        if self.exchange is not None:
            self.exchange.on_step_begin()
        loads = self._tier.loads
        for loaded in self._transfers.loaded():
            if loaded.arrays is not None and not loaded.load.is_cancelled:
                self._write(loaded, loaded.arrays)
            for item, is_intact in zip(loaded.items, loaded.intact, strict=True):
                loads.come(loaded.load, item, is_intact=is_intact and loaded.arrays is not None)
        for request in self._tier.take_released():
            self._scheduler.release(request, HOLD_REASON)

    def _take_promoted(self, disk: DiskTier) -> None:
        promotions = self._tier.promotions
        assert promotions is not None
        for job in disk.promoted():
            for copy, checksum in zip(job.copies, job.checksums, strict=True):
                promotions.come(job.promotion, copy, checksum)
        promotions.expire()
        if disk.writer.tells:
            # In this order: one that is written again while it is told as gone is not told as there.
            self._tier.note_files(disk.writer.take_written(), disk.writer.take_gone())

    def on_step_end(self, *, is_idle: bool) -> None:
        """Begin to copy what can be found since the last step; wait a little for a load if nothing can be computed."""
        if self._pace is not None:
            # What another engine waits for is not held up.
            is_urgent = self.exchange is not None and self.exchange.is_copying
            self._pace.is_computing = not is_idle and not is_urgent
            self._pace.is_behind = len(self._tier.stores) > self._pace.most_waiting
        self._copy_ahead()
        if is_idle and self._tier.is_waiting:
            self._transfers.wait(IDLE_SECONDS)

    def _copy_ahead(self) -> None:
        stores, mover, transfers = self._tier.stores, self._mover, self._transfers
        while stores.has_states and transfers.can_store:
            state = stores.next_state(mover.state_bytes)
            if state is not None:
                transfers.store([state[0]], (mover.gather_state(state[1]),))
        while len(stores) and transfers.can_store:
            found = stores.next_pages(mover.most, mover.page_bytes)
            if found:
                transfers.store([copy for copy, _ in found], mover.gather([page for _, page in found]))

    @property
    def descriptions(self) -> tuple[str, ...]:
        """Where copies are, for people."""
        host = self._tier.host
        memory = f"{host.num_slots * host.slot_bytes / 2**30:.2f} GiB of host memory"
        return (memory, *(each.description for each in (self.disk, self.exchange) if each is not None))

    @property
    def is_behind(self) -> bool:
        """Whether anything is left to be copied, or is on its way."""
        if self.exchange is not None and self.exchange.is_behind:
            return True
        waits_for_files = self.disk is not None and self.disk.writer.num_waiting > 0
        return len(self._tier.stores) > 0 or self._tier.stores.has_states or self._transfers.is_busy or waits_for_files

    def go_on(self) -> float:
        """Copy what waits, while the engine has nothing else to do. Seconds until it is worth another call; 0: none."""
        if self._pace is not None:
            self._pace.is_computing = False
        self.on_step_begin()
        self._copy_ahead()
        if not self.is_behind:
            return 0.0
        return URGENT_SECONDS if self.exchange is not None and self.exchange.is_copying else COPY_SECONDS

    def counts(self) -> OffloadCounts:
        """What it has done so far."""
        tier, transfers = self._tier, self._transfers
        files = {} if self.disk is None else self._counts_of_files(self.disk)
        return OffloadCounts(
            queries=tier.loads.num_queries,
            hits=tier.loads.num_hits,
            load_bytes=transfers.load_bytes,
            load_seconds=transfers.load_seconds,
            store_bytes=transfers.store_bytes,
            store_seconds=transfers.store_seconds,
            failures=tier.loads.num_failures,
            dropped=tier.stores.num_dropped,
            usage=tier.host.usage,
            **files,
        )

    def _counts_of_files(self, disk: DiskTier) -> dict[str, Any]:
        promotions = self._tier.promotions
        assert promotions is not None
        return {
            "disk_queries": promotions.num_queries,
            "disk_hits": promotions.num_hits,
            "disk_read_bytes": disk.read_bytes,
            "disk_read_seconds": disk.read_seconds,
            "disk_write_bytes": disk.writer.num_bytes,
            "disk_write_seconds": disk.writer.seconds,
            "disk_read_failures": disk.num_failures + promotions.num_late,
            "disk_write_failures": disk.writer.num_failures,
            "disk_dropped": disk.writer.num_dropped,
            "disk_usage": disk.usage,
        }

    def forget_files(self) -> None:
        """Delete the files of the engine's layout."""
        if self.disk is not None:
            self.disk.writer.clear()

    def stop_files(self, reason: str) -> None:
        """Use no files, and exchange nothing with other engines, from now on."""
        if self.exchange is not None:
            self.exchange.stop(reason)
        if self.disk is not None:
            self.disk.writer.stop(reason)

    def close(self) -> None:
        """Copy what waits to files, for a moment, and end the threads."""
        if self._pace is not None:
            self._pace.is_computing = False
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            while self.disk is not None and self.go_on() and time.monotonic() < deadline:
                self._transfers.wait(IDLE_SECONDS)
        except Exception:
            # The devices may be why the engine ends.
            logger.exception("the last copies of KV pages are not made")
        self._transfers.close()
        if self.disk is not None:
            self.disk.close()

    def _start(self, load: Load) -> None:
        states = self._tier.loads.states
        pages = [item for item in load.items if item.copy.part != states]
        # Few, where steps of others wait for each call.
        count = self._mover.least if self._pace is not None and self._pace.is_computing else self._mover.most
        for first in range(0, len(pages), count):
            some = pages[first : first + count]
            self._transfers.load(load, some, self._mover.staging(len(some)))
        for item in load.items:
            if item.copy.part == states:
                self._transfers.load(load, [item], self._mover.state)

    def _write(self, loaded: Loaded, arrays: Arrays) -> None:
        if arrays[0].ndim == 1:
            if loaded.intact[0]:
                self._mover.scatter_state(arrays[0], loaded.items[0].place)
        else:
            self._mover.scatter(arrays, [item.place for item in loaded.items])


def _places(pages: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    places = np.zeros(size, np.int32)
    places[: len(pages)] = pages
    return places, np.array(len(pages), np.int32)
