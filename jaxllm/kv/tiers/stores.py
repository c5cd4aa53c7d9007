"""What is to be copied from the devices to the host.

Pages are copied ahead: they are offered when they can be found, and copied in the order of the devices' work, before
anything that is scheduled later can overwrite them. Nobody waits for that: a page that is evicted before its turn, or
that comes while too many wait, is dropped.
"""

from collections.abc import Callable, Iterable

from jaxllm.kv.events import About
from jaxllm.kv.prefix import PrefixCache
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool

MOST_OFFERED = 4096
"""Pages that wait to be copied at most."""


class Stores:
    """Pages and snapshots that can be found and wait for a copy in `host`; states are its part number `states`."""

    def __init__(self, host: HostPool, cache: PrefixCache, snapshots: SnapshotPool | None, states: int) -> None:
        self.num_dropped = 0
        """Pages and states that were not copied, so far."""
        self.describe: Callable[[bytes], About | None] | None = None
        """Says what a page is made of, where copies are told of."""
        self.copies_ahead = True
        """Whether what is offered is copied. Otherwise the host has only what comes from elsewhere."""
        self._host, self._cache, self._snapshots, self._states = host, cache, snapshots, states
        self._pages: dict[int, None] = {}  # oldest first
        self._digests: dict[bytes, None] = {}  # of snapshots

    def __len__(self) -> int:
        """Pages that wait."""
        return len(self._pages)

    @property
    def has_states(self) -> bool:
        """Whether snapshots wait."""
        return bool(self._digests)

    def offer(self, pages: Iterable[int]) -> None:
        """Pages that can be found are worth a copy."""
        if not self.copies_ahead:
            return
        for page in pages:
            if len(self._pages) < MOST_OFFERED:
                self._pages[page] = None
            else:
                self.num_dropped += 1

    def offer_state(self, digest: bytes) -> None:
        """A snapshot that can be found is worth a copy."""
        if not self.copies_ahead:
            return
        if len(self._digests) < MOST_OFFERED:
            self._digests[digest] = None
        else:
            self.num_dropped += 1

    def waits(self, page: int) -> bool:
        """Whether a page is still to be copied."""
        return page in self._pages

    def waits_for_state(self, digest: bytes) -> bool:
        """Whether a snapshot is still to be copied."""
        return digest in self._digests

    def next_pages(self, count: int, size: int) -> list[tuple[HostCopy, int]]:
        """Up to `count` pages of `size` bytes, each with room for its copy.

        Every step that was scheduled so far is dispatched, and no later one: so the pages hold what they are found by.
        """
        found: list[tuple[HostCopy, int]] = []
        while self._pages and len(found) < count:
            page = next(iter(self._pages))
            del self._pages[page]
            where = self._cache.where(page)
            if where is None:
                self.num_dropped += 1
                continue
            copy = self._room(where[1], where[0], size)
            if copy is not None:
                found.append((copy, page))
        return found

    def next_state(self, size: int) -> tuple[HostCopy, int] | None:
        """A snapshot of `size` bytes with room for its copy, and its slot; as with pages. None if there is none."""
        while self._digests and self._snapshots is not None:
            digest = next(iter(self._digests))
            del self._digests[digest]
            slot = self._snapshots.slot_of(digest)
            if slot is None:
                self.num_dropped += 1
                continue
            copy = self._room(digest, self._states, size)
            if copy is not None:
                return copy, slot
        return None

    def _room(self, digest: bytes, part: int, size: int) -> HostCopy | None:
        if self._host.knows(digest, part):
            return None
        copy = self._host.begin_write(digest, part, size)
        self.num_dropped += copy is None
        if copy is not None and self.describe is not None and part != self._states:
            copy.about = self.describe(digest)
        return copy

    def clear(self) -> None:
        """Nothing waits any more."""
        self._pages.clear()
        self._digests.clear()
