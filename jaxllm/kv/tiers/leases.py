"""Copies that are kept for other engines: of each prompt that was computed for one, until it was fetched.

A lease holds pages of the devices only until they are copied to the host, and copies until somebody has fetched them or
its time is up. The engine's thread calls everything, but for the few methods that say that any thread may.
"""

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxllm.kv.pages import Int32Array, PagePool
from jaxllm.kv.prefix import PrefixCache
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool
from jaxllm.kv.tiers.promotions import Wanted
from jaxllm.kv.tiers.stores import Stores

Key = tuple[bytes, int]
"""The digest and the part of a page or state."""


@dataclass(eq=False, slots=True)
class Lease:
    """What is kept for whoever knows `name`, until `deadline` (monotonic clock)."""

    name: str
    request_id: str
    deadline: float
    copies: dict[Key, HostCopy] = field(default_factory=dict)
    """On the host. It is not changed any more once the lease `is_complete`."""
    pending: dict[Key, int | None] = field(default_factory=dict)
    """Not there yet: pages of the devices, None for states."""
    readers: int = 0
    is_complete: bool = False
    is_over: bool = False


class Leases:
    """The leases of an engine, each for `seconds`; states are part number `states`."""

    def __init__(
        self,
        host: HostPool,
        cache: PrefixCache,
        pages: PagePool,
        snapshots: SnapshotPool | None,
        stores: Stores,
        states: int,
        seconds: float,
    ) -> None:
        self.num_granted = self.num_expired = self.num_released = 0
        """So far: leases, those whose time was up, and those that somebody has ended before."""
        self._host, self._cache, self._pages, self._snapshots = host, cache, pages, snapshots
        self._stores, self._states, self._seconds = stores, states, seconds
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._names: dict[str, str] = {}  # of leases, by the request that they are of

    def __len__(self) -> int:
        """Leases that are not over; any thread may ask."""
        return len(self._leases)

    @property
    def is_copying(self) -> bool:
        """Whether anything is to come to the host."""
        return any(not lease.is_complete for lease in self._leases.values())

    def grant(self, request_id: str, wanted: Sequence[Wanted]) -> Lease:
        """Keep these pages and states of a request, as far as they are there."""
        lease = Lease(secrets.token_hex(16), request_id, time.monotonic() + self._seconds)
        self._names[request_id] = lease.name
        for digest, part, _ in wanted:
            if self._host.has(digest, part):
                lease.copies[digest, part] = self._host.begin_read(digest, part)
            elif part == self._states:
                if not self._host.knows(digest, part):
                    self._stores.offer_state(digest)
                lease.pending[digest, part] = None
            elif pages := self._cache.pages_of((digest,), part):
                self._pages.share(np.array(pages, np.int32))
                if not self._host.knows(digest, part):
                    self._stores.offer(pages)
                lease.pending[digest, part] = pages[0]
        lease.is_complete = not lease.pending
        self.num_granted += 1
        with self._lock:
            self._leases[lease.name] = lease
        return lease

    def abort(self, request_id: str) -> None:
        """Nobody wants the answer to a request, if it has one."""
        name = self._names.get(request_id)
        if name is not None:
            self.release(name)

    def update(self) -> bool:
        """See what has come to the host, and end leases whose time is up. Whether any has become complete."""
        now, has_news = time.monotonic(), False
        for lease in list(self._leases.values()):
            if lease.pending:
                self._take_copies(lease)
                if not lease.pending:
                    lease.is_complete = has_news = True
            if not lease.is_over and now > lease.deadline:
                lease.is_over = True
                self.num_expired += 1
            if lease.is_over:
                self._end(lease)
        return has_news

    def _take_copies(self, lease: Lease) -> None:
        for key, page in list(lease.pending.items()):
            if self._host.has(*key):
                lease.copies[key] = self._host.begin_read(*key)
            elif self._host.knows(*key) or (self._stores.waits(page) if page is not None else self._waits_state(key)):
                continue
            self._forget_pending(lease, key)

    def _waits_state(self, key: Key) -> bool:
        return self._stores.waits_for_state(key[0])

    def _forget_pending(self, lease: Lease, key: Key) -> None:
        page = lease.pending.pop(key)
        if page is not None:
            self._pages.release(np.array([page], np.int32))

    def _end(self, lease: Lease) -> None:
        with self._lock:
            if lease.readers:
                return  # it ends when nobody reads it any more
            del self._leases[lease.name]
        if self._names.get(lease.request_id) == lease.name:
            del self._names[lease.request_id]
        for key in list(lease.pending):
            self._forget_pending(lease, key)
        self._host.touch(digest for digest, _ in reversed(lease.copies))
        for copy in lease.copies.values():
            self._host.end_read(copy)
        lease.copies = {}

    def cancel(self) -> None:
        """Give back all pages of the devices, and end all leases."""
        for lease in list(self._leases.values()):
            lease.is_over = lease.is_complete = True
            for key in list(lease.pending):
                self._forget_pending(lease, key)
            self._end(lease)

    def held_pages(self) -> Iterator[Int32Array]:
        """The pages of the devices that each lease holds."""
        for lease in self._leases.values():
            yield np.array([page for page in lease.pending.values() if page is not None], np.int32)

    def check_integrity(self) -> None:
        """Assert that copies of leases have readers."""
        for lease in self._leases.values():
            assert all(copy.readers > 0 for copy in lease.copies.values())

    # For any thread

    def begin_serving(self, name: str) -> Lease | None:
        """The lease of this name, whose copies stay until `end_serving`; None where there is none."""
        with self._lock:
            lease = self._leases.get(name)
            if lease is None or lease.is_over:
                return None
            lease.readers += 1
            return lease

    def end_serving(self, lease: Lease) -> None:
        """Nothing is read from a lease any more."""
        with self._lock:
            lease.readers -= 1

    def release(self, name: str) -> bool:
        """Whoever has fetched a lease, or does not want it, says so. Whether there was such a lease."""
        with self._lock:
            lease = self._leases.get(name)
            if lease is None or lease.is_over:
                return False
            lease.is_over = True
            self.num_released += 1
            return True
