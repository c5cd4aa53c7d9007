"""The host tier in the steps of an engine: what is copied ahead after a step, and what has come back before one."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxllm.engine.offloading.transfers import Loaded, Transfers
from jaxllm.executor.program_table import GATHER_PAGES, GATHER_STATE, SCATTER_PAGES, SCATTER_STATE, ProgramRecord
from jaxllm.executor.runner import Runner
from jaxllm.executor.transfer_programs import staging_of, state_size
from jaxllm.kv.tiers.counts import OffloadCounts
from jaxllm.kv.tiers.loads import HOLD_REASON, Load
from jaxllm.kv.tiers.tier import Tier
from jaxllm.scheduler.scheduler import Scheduler

IDLE_SECONDS = 0.05
"""How long an engine with nothing else to do waits for a load at a time."""


class PageMover:
    """Dispatches what moves pages and states between the cache and arrays of their own, in the engine's thread."""

    def __init__(self, runner: Runner, sizes: Sequence[int], whole: NamedSharding | None) -> None:
        """`sizes` are those of the programs, the smallest first; `whole` is where arrays are that are not split."""
        self._runner, self.most = runner, sizes[-1]
        cache = runner.calls.state.kv_cache
        self.stagings = [staging_of(cache.pages[0], size) for size in sizes]
        self.page_bytes = _bytes(self.stagings[-1]) // self.most
        self.state_bytes = state_size(cache.states)
        self.state = jax.ShapeDtypeStruct((self.state_bytes,), np.uint8, sharding=whole)

    def staging(self, count: int) -> jax.ShapeDtypeStruct:
        """The smallest array with so many pages."""
        return next(each for each in self.stagings if each.shape[0] >= count)

    def gather(self, pages: Sequence[int]) -> jax.Array:
        """The contents of pages, a row for each, as they are after what is dispatched."""
        size = self.staging(len(pages)).shape[0]
        result: jax.Array = self._call(GATHER_PAGES, size, *_places(pages, size))
        return result

    def scatter(self, array: jax.Array, pages: Sequence[int]) -> None:
        """Write the first rows of an array to pages, before what is dispatched later."""
        size = array.shape[0]
        self._call(SCATTER_PAGES, size, *_places(pages, size), array)

    def gather_state(self, slot: int) -> jax.Array:
        """The states in a slot, as bytes."""
        with self._runner.watch.watching("a state on its way to the host"):
            result: jax.Array = self._runner.calls.call(GATHER_STATE, np.int32(slot))
        return result

    def scatter_state(self, array: jax.Array, slot: int) -> None:
        """Write the states of a slot from their bytes."""
        with self._runner.watch.watching("a state from the host"):
            self._runner.calls.call(SCATTER_STATE, np.int32(slot), array)

    def _call(self, program: ProgramRecord, size: int, *arrays: Any) -> Any:
        with self._runner.watch.watching("pages on their way"):
            return self._runner.calls.call_sized(program, size, *arrays)


class HostTier:
    """Belongs to an engine. Its thread calls everything; copying itself is done in others."""

    def __init__(self, tier: Tier, mover: PageMover, scheduler: Scheduler, transfers: Transfers) -> None:
        self._tier, self._mover, self._scheduler, self._transfers = tier, mover, scheduler, transfers
        tier.loads.start = self._start

    def on_step_begin(self) -> None:
        """Write to the cache what has come from the host, and let requests run that have waited for it."""
        for each in self._transfers.stored():
            for copy, checksum in zip(each.copies, each.checksums, strict=True):
                self._tier.host.end_write(copy, checksum)
        loads = self._tier.loads
        for loaded in self._transfers.loaded():
            if loaded.array is not None and not loaded.load.is_cancelled:
                self._write(loaded, loaded.array)
            for item, is_intact in zip(loaded.items, loaded.intact, strict=True):
                loads.come(loaded.load, item, is_intact=is_intact and loaded.array is not None)
        for request in loads.take_released():
            self._scheduler.release(request, HOLD_REASON)

    def on_step_end(self, *, is_idle: bool) -> None:
        """Begin to copy what can be found since the last step; wait a little for a load if nothing can be computed."""
        stores, mover, transfers = self._tier.stores, self._mover, self._transfers
        while stores.has_states and transfers.can_store:
            state = stores.next_state(mover.state_bytes)
            if state is not None:
                transfers.store([state[0]], mover.gather_state(state[1]))
        while len(stores) and transfers.can_store:
            found = stores.next_pages(mover.most, mover.page_bytes)
            if found:
                transfers.store([copy for copy, _ in found], mover.gather([page for _, page in found]))
        if is_idle and len(self._tier.loads):
            transfers.wait(IDLE_SECONDS)

    def counts(self) -> OffloadCounts:
        """What it has done so far."""
        tier, transfers = self._tier, self._transfers
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
        )

    def close(self) -> None:
        """End the threads."""
        self._transfers.close()

    def _start(self, load: Load) -> None:
        states = self._tier.loads.states
        pages = [item for item in load.items if item.copy.part != states]
        for first in range(0, len(pages), self._mover.most):
            some = pages[first : first + self._mover.most]
            self._transfers.load(load, some, self._mover.staging(len(some)))
        for item in load.items:
            if item.copy.part == states:
                self._transfers.load(load, [item], self._mover.state)

    def _write(self, loaded: Loaded, array: jax.Array) -> None:
        if array.ndim == 1:
            if loaded.intact[0]:
                self._mover.scatter_state(array, loaded.items[0].place)
        else:
            self._mover.scatter(array, [item.place for item in loaded.items])


def _places(pages: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    places = np.zeros(size, np.int32)
    places[: len(pages)] = pages
    return places, np.array(len(pages), np.int32)


def _bytes(array: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
