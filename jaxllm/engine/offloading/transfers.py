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
from typing import Generic, TypeVar

import jax
import numpy as np

from jaxllm.engine.offloading.pace import Pace
from jaxllm.kv.tiers.host_pool import Bytes, HostCopy, HostPool
from jaxllm.kv.tiers.loads import Item, Load

logger = logging.getLogger(__name__)

MOST_STORES = 2
"""Arrays on their way to the host at most: so much of the devices' memory it may take."""
MOST_LOADED = 4
"""Arrays that are back on the devices, and wait to be written to the cache, at most."""

OTHER_HALF = 2.0
"""Gathering pages from the cache, or writing them to it, takes processors about as long as a thread copies them."""
PIECE = 8
"""Copies of a store after which the thread rests, where it keeps to a pace."""
ALIGNMENT = 64
"""Bytes: arrays of the host that begin at multiples of it are used by the CPU's devices as they are."""

Job = TypeVar("Job")
Arrays = tuple[jax.Array, ...]
"""Rows of pages, an array of each stage of layers, or one array with a state."""
Shapes = tuple[jax.ShapeDtypeStruct, ...]


@dataclass(eq=False)
class Stored:
    """Copies from arrays of the devices, a row of each for one copy, with their checksums; None where it failed."""

    copies: list[HostCopy]
    arrays: Arrays | None
    checksums: list[int | None]
    seconds: float = 0.0
    rested: float = 0.0


@dataclass(eq=False)
class Loaded:
    """Items of a load in arrays of the devices, a row of each for one; those that are not intact mean nothing."""

    load: Load
    items: list[Item]
    into: Shapes
    intact: list[bool]
    arrays: Arrays | None = None
    seconds: float = 0.0


class Worker(Generic[Job]):
    """A thread that does jobs in their order; `done` has those it has finished, at most `most` if that is not 0.

    It keeps to a `pace`, if it is given one: a job counts `weight` times. Of one that somebody waits for, `awaited` has
    the bytes.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Job], None],
        news: threading.Event,
        most: int = 0,
        pace: Pace | None = None,
        awaited: Callable[[Job], int] = lambda _: 0,
        weight: float = 1.0,
    ) -> None:
        self.num_left = 0
        """Jobs that were given and not taken yet."""
        self._work, self._news, self._pace = work, news, pace
        self._awaited, self._weight = awaited, weight
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
            start, used = time.monotonic(), time.thread_time()
            try:
                self._work(job)
            except Exception:
                logger.exception("copying KV pages failed")
            job.seconds = time.monotonic() - start  # type: ignore[attr-defined]
            used, awaited = time.thread_time() - used, self._awaited(job)
            self._done.put(job)
            self._news.set()
            # What a job holds is free for others meanwhile.
            del job
            if self._pace is not None:
                self._pace.rest(used * self._weight, awaited)

    def close(self, seconds: float = float("inf")) -> None:
        """End the thread, after what it was given; one that is stuck for so long ends with the process."""
        self._jobs.put(None)
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.take()
            self._thread.join(0.01)


class Transfers:
    """Copies between arrays and `host`, both ways; at a `pace`, if it is given one."""

    def __init__(self, host: HostPool, pace: Pace | None = None) -> None:
        self.load_bytes = self.store_bytes = 0
        self.load_seconds = self.store_seconds = 0.0
        """So far: of all jobs that were taken."""
        self._host, self._pace, self.news = host, pace, threading.Event()
        """Set when something has come."""
        self._stores: Worker[Stored] = Worker("kv-store", self._store, self.news)
        self._loads: Worker[Loaded] = Worker(
            "kv-load", self._load, self.news, MOST_LOADED, pace,
            awaited=lambda job: sum(item.copy.size for item in job.items), weight=OTHER_HALF,
        )  # fmt: skip

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        return self._stores.num_left > 0 or self._loads.num_left > 0

    @property
    def can_store(self) -> bool:
        """Whether another array may be on its way to the host."""
        return self._stores.num_left < MOST_STORES

    def store(self, copies: list[HostCopy], arrays: Arrays) -> None:
        """Copy rows of arrays, whose computation is dispatched, into the host's pool."""
        for array in arrays:
            array.copy_to_host_async()
        self._stores.give(Stored(copies, arrays, [None] * len(copies)))

    def load(self, load: Load, items: list[Item], into: Shapes) -> None:
        """Bring items to rows of arrays like `into`."""
        self._loads.give(Loaded(load, items, into, [False] * len(items)))

    def stored(self) -> list[Stored]:
        """What was stored since the last call."""
        found = self._stores.take()
        for each in found:
            self.store_seconds += each.seconds - each.rested
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
        assert job.arrays is not None
        rows = as_rows(job.arrays, len(job.copies))
        job.arrays = None
        for first in range(0, len(job.copies), PIECE):
            used = time.thread_time()
            for index, copy in enumerate(job.copies[first : first + PIECE], first):
                job.checksums[index] = self._host.fill(copy, rows[index])
            if self._pace is not None:
                job.rested += self._pace.rest((time.thread_time() - used) * OTHER_HALF)

    def _load(self, job: Loaded) -> None:
        count = len(job.items) if len(job.into[0].shape) == 1 else job.into[0].shape[0]
        parts = [_empty(num_bytes(each)).reshape(count, -1) for each in job.into]
        ends = np.cumsum([part.shape[1] for part in parts])
        whole = np.empty(ends[-1], np.uint8) if len(parts) > 1 else None
        intact = []
        for index, item in enumerate(job.items):
            intact.append(self._host.read(item.copy, parts[0][index] if whole is None else whole))
            if whole is not None:
                for part, own in zip(parts, np.split(whole, ends[:-1]), strict=True):
                    part[index] = own
        job.arrays = tuple(put(part, into) for part, into in zip(parts, job.into, strict=True))
        job.intact = intact


def _empty(size: int) -> Bytes:
    """Memory for the devices, uint8 [size]. The process keeps it for the next time: new pages of it cost a copy."""
    data = np.empty(size + ALIGNMENT, np.uint8)
    first = -data.ctypes.data % ALIGNMENT
    return data[first : first + size]


def num_bytes(array: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array like this."""
    return int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize


def as_rows(arrays: Arrays, count: int) -> Bytes:
    """The bytes of `count` rows, each that of one array after that of another; of one row if it is bytes already."""
    each = [_rows(np.asarray(array), count) for array in arrays]
    return each[0] if len(each) == 1 else np.concatenate(each, axis=1)


def _rows(array: np.ndarray, count: int) -> Bytes:
    if array.ndim == 1:
        return array.view(np.uint8).reshape(1, -1)
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)[:count]


def put(data: Bytes, into: jax.ShapeDtypeStruct) -> jax.Array:
    """An array of these bytes on the devices, where the programs expect it."""
    array = data.reshape(-1).view(into.dtype).reshape(into.shape)
    return jax.device_put(array) if into.sharding is None else jax.device_put(array, into.sharding)
