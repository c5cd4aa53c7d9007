"""Threads that copy pages and states between arrays of the devices and the host's pool.

The engine's thread dispatches what touches the cache, in the order of its steps: gathering into an array of its own
before a store, writing an array into the cache after a load. Everything that takes time is done here, in one thread
each way. Results wait until the engine's thread asks for them.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from jaxllm.kv.tiers.host_pool import Bytes, HostCopy, HostPool, allocate
from jaxllm.kv.tiers.loads import Item, Load

logger = logging.getLogger(__name__)

MOST_STORES = 2
"""Arrays on their way to the host at most: so much of the devices' memory it may take."""
MOST_LOADED = 4
"""Arrays that are back on the devices, and wait to be written to the cache, at most."""

Job = TypeVar("Job")


@dataclass(eq=False)
class Stored:
    """Copies from an array of the devices, one row for each, with their checksums; None where it failed."""

    copies: list[HostCopy]
    array: jax.Array | None
    checksums: list[int | None]
    seconds: float = 0.0


@dataclass(eq=False)
class Loaded:
    """Items of a load in an array of the devices, a row for each; of those that are not intact it means nothing."""

    load: Load
    items: list[Item]
    into: jax.ShapeDtypeStruct
    intact: list[bool]
    array: jax.Array | None = None
    seconds: float = 0.0


class Worker(Generic[Job]):
    """A thread that does jobs in their order; `done` has those it has finished, at most `most` if that is not 0."""

    def __init__(self, name: str, work: Callable[[Job], None], news: threading.Event, most: int = 0) -> None:
        self.num_left = 0
        """Jobs that were given and not taken yet."""
        self._work, self._news = work, news
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.Queue[Job] = queue.Queue(most)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, job: Job) -> None:
        """Have a job done."""
        self.num_left += 1
        self._jobs.put(job)

    def take(self) -> list[Job]:
        """Jobs that were done since the last call. Costs nothing when none was given."""
        found: list[Job] = []
        while self.num_left:
            try:
                found.append(self._done.get_nowait())
            except queue.Empty:
                break
            self.num_left -= 1
        return found

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            start = time.monotonic()
            try:
                self._work(job)
            except Exception:
                logger.exception("copying KV pages failed")
            job.seconds = time.monotonic() - start  # type: ignore[attr-defined]
            self._done.put(job)
            self._news.set()

    def close(self, seconds: float = float("inf")) -> None:
        """End the thread, after what it was given; one that is stuck for so long ends with the process."""
        self._jobs.put(None)
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.take()
            self._thread.join(0.01)


class Transfers:
    """Copies between arrays and `host`, both ways."""

    def __init__(self, host: HostPool) -> None:
        self.load_bytes = self.store_bytes = 0
        self.load_seconds = self.store_seconds = 0.0
        """So far: of all jobs that were taken."""
        self._host, self.news = host, threading.Event()
        """Set when something has come."""
        self._stores: Worker[Stored] = Worker("kv-store", self._store, self.news)
        self._loads: Worker[Loaded] = Worker("kv-load", self._load, self.news, MOST_LOADED)

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        return self._stores.num_left > 0 or self._loads.num_left > 0

    @property
    def can_store(self) -> bool:
        """Whether another array may be on its way to the host."""
        return self._stores.num_left < MOST_STORES

    def store(self, copies: list[HostCopy], array: jax.Array) -> None:
        """Copy rows of an array, whose computation is dispatched, into the host's pool."""
        array.copy_to_host_async()
        self._stores.give(Stored(copies, array, [None] * len(copies)))

    def load(self, load: Load, items: list[Item], into: jax.ShapeDtypeStruct) -> None:
        """Bring items to rows of an array like `into`."""
        self._loads.give(Loaded(load, items, into, [False] * len(items)))

    def stored(self) -> list[Stored]:
        """What was stored since the last call."""
        found = self._stores.take()
        for each in found:
            self.store_seconds += each.seconds
            self.store_bytes += sum(copy.size for copy in each.copies)
        return found

    def loaded(self) -> list[Loaded]:
        """What was loaded since the last call."""
        found = self._loads.take()
        for each in found:
            self.load_seconds += each.seconds
            self.load_bytes += sum(item.copy.size for item in each.items)
        return found

    def wait(self, seconds: float) -> None:
        """Wait until there is something new, or so long."""
        self.news.wait(seconds)
        self.news.clear()

    def close(self) -> None:
        """End the threads."""
        self._stores.close()
        self._loads.close()

    def _store(self, job: Stored) -> None:
        assert job.array is not None
        rows = as_rows(np.asarray(job.array), len(job.copies))
        job.array = None
        for index, copy in enumerate(job.copies):
            job.checksums[index] = self._host.fill(copy, rows[index])

    def _load(self, job: Loaded) -> None:
        size = int(np.prod(job.into.shape)) * np.dtype(job.into.dtype).itemsize
        data = allocate(size)
        count = len(job.items) if len(job.into.shape) == 1 else job.into.shape[0]
        rows = data.reshape(count, -1)
        intact = [self._host.read(item.copy, rows[index]) for index, item in enumerate(job.items)]
        job.array = put(data.view(job.into.dtype).reshape(job.into.shape), job.into.sharding)
        job.intact = intact


def as_rows(array: np.ndarray, count: int) -> Bytes:
    """The bytes of `count` rows of an array; of one row if it is bytes already."""
    if array.ndim == 1:
        return array.view(np.uint8).reshape(1, -1)
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)[:count]


def put(array: np.ndarray, place: Any) -> jax.Array:
    """The array on the devices, where the programs expect it."""
    return jax.device_put(array) if place is None else jax.device_put(array, place)
