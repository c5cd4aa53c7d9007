"""What is on its way back from the host to the devices.

A request whose prefix goes on in the host's copies is held while these are brought back to free pages; then it finds
them like any others. What was brought back for a request that has ended stays findable.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.pages import Int32Array, PagePool
from jaxllm.kv.prefix import Copies, PrefixCache, longest_prefix
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool
from jaxllm.kv.tiers.promotions import Promotions, Wanted
from jaxllm.requests.request import Request

HOLD_REASON = "kv_offloading"
"""Why requests wait for pages of the host."""


class Take(Protocol):
    """Hands out pages that are free, int32 [count]."""

    def __call__(self, count: int) -> Int32Array:
        """There must be so many."""


@dataclass(eq=False, slots=True)
class Item:
    """A page, or a state (`place` is its slot), that a copy is brought to; `number` is the page's in its request."""

    copy: HostCopy
    number: int
    place: int
    has_come: bool = False


@dataclass(eq=False, slots=True)
class Load:
    """What is brought back for `request`, and for others that are `waiting` for the same.

    `kept` are pages that are there already, and stay until the rest has come. `tokens` are those that can be found
    after it and could not before, `left` the items that have not come yet.
    """

    request: Request
    items: list[Item]
    kept: Int32Array
    tokens: int
    waiting: list[Request]
    left: int
    is_cancelled: bool = False


class Loads:
    """Loads from `host`, each held by pages and slots of its own until its end; states are part number `states`."""

    def __init__(
        self,
        host: HostPool,
        cache: PrefixCache,
        pages: PagePool,
        groups: CacheGroups,
        snapshots: SnapshotPool | None,
        take: Take,
    ) -> None:
        self.num_queries = self.num_hits = self.num_failures = 0
        """Tokens looked up and found here, loads that did not bring all; so far."""
        self.on_loaded: Callable[[Load], None] | None = None
        """Hears of a load whose pages can be found now, if anybody is to."""
        self.start: Callable[[Load], None] = _nobody
        """Begins to read what a load brings, and calls `come` for each item later on."""
        self._host, self._cache, self._pages, self._groups = host, cache, pages, groups
        self._snapshots, self._take = snapshots, take
        self.states = groups.num_tables
        """The part that states are."""
        self._tables = [cache.known(table, host) for table in range(groups.num_tables)]
        self._promotions: Promotions | None = None
        self._all: Copies = host
        self._all_tables = self._tables
        self._loads: dict[tuple[bytes, int], Load] = {}  # by digest and part
        self._released: list[Request] = []

    def __len__(self) -> int:
        """Items that have not come yet, and those that wait for them."""
        return len(self._loads)

    def use_files(self, promotions: Promotions) -> None:
        """Find copies in files as well; they are brought to the host first."""
        self._promotions, self._all = promotions, _Either(self._host, promotions.files)
        self._all_tables = [self._cache.known(table, self._all) for table in range(self._groups.num_tables)]

    def begin(self, request: Request, digests: list[bytes], num_found: int, headroom: int) -> bool:
        """Whether a request with these digests, the first `num_found` on the devices, is to wait for more of them.

        Each request asks once before it runs. Nothing is loaded unless `headroom` pages stay free.
        """
        if not request.asks_host:
            return False
        size = self._groups.page_size
        count = longest_prefix(digests, self._groups, self._tables, partial(self._longest_state, self._host))
        if self._waits_for_files(request, digests, max(count, num_found)):
            return True
        wanted, kept = self._wanted(digests[:count]) if count > num_found else ([], None)
        under_way = [self._loads[key] for each in wanted if (key := each[:2]) in self._loads]
        if under_way:
            under_way[0].waiting.append(request)  # It asks again after that.
            return True
        request.asks_host = False
        self.num_queries += request.num_tokens - num_found * size
        if kept is None:
            return False
        num_pages = sum(part != self.states for _, part, _ in wanted)
        if num_pages + headroom > self._pages.num_free - self._pages.count_idle(kept):
            return False
        return self._begin(request, wanted, kept, (count - num_found) * size)

    def _waits_for_files(self, request: Request, digests: list[bytes], num_found: int) -> bool:
        """Whether files have more than the first `num_found`, and it is being brought to the host."""
        if self._promotions is None or not request.asks_files:
            return False
        longest_state = partial(self._longest_state, self._all)
        count = longest_prefix(digests, self._groups, self._all_tables, longest_state)
        wanted = self._wanted(digests[:count])[0] if count > num_found else []
        num_tokens = (count - num_found) * self._groups.page_size
        return bool(wanted) and self._promotions.begin(request, wanted, num_tokens)

    def _longest_state(self, copies: Copies, digests: Sequence[bytes]) -> int:
        if self._snapshots is None:
            return len(digests)
        here = self._snapshots.longest(digests)
        counts = range(len(digests), here, -1)
        return next((count for count in counts if copies.has(digests[count - 1], self.states)), here)

    def _wanted(self, digests: list[bytes]) -> tuple[list[Wanted], Int32Array]:
        """What a prefix needs that must come from the host, a state last, and the pages that are here."""
        wanted: list[Wanted] = []
        here: list[int] = []
        count = len(digests)
        for group in self._groups.all:
            for number in range(self._groups.begin(group, count * self._groups.page_size), count):
                for table in group.tables:
                    pages = self._cache.pages_of(digests[number : number + 1], table)
                    here += pages
                    if not pages:
                        wanted.append((digests[number], table, number))
        if self._snapshots is not None and self._snapshots.slot_of(digests[-1]) is None:
            wanted.append((digests[-1], self.states, count - 1))
        return wanted, np.array(here, np.int32)

    def longest(self, digests: Sequence[bytes]) -> int:
        """How many of these pages a request can begin with, on the devices and on the host."""
        return longest_prefix(digests, self._groups, self._tables, partial(self._longest_state, self._host))

    def needed(self, digests: Sequence[bytes]) -> list[Wanted]:
        """All that a prefix needs, wherever it is; a state last."""
        count = len(digests)
        needed: list[Wanted] = [
            (digests[number], table, number)
            for group in self._groups.all
            for number in range(self._groups.begin(group, count * self._groups.page_size), count)
            for table in group.tables
        ]
        if self._snapshots is not None and count:
            needed.append((digests[-1], self.states, count - 1))
        return needed

    def absent(self, digests: list[bytes]) -> list[Wanted]:
        """What of that is neither on the devices nor on the host."""
        return [each for each in self._wanted(digests)[0] if not self._host.has(*each[:2])] if digests else []

    def _begin(self, request: Request, wanted: list[Wanted], kept: Int32Array, tokens: int) -> bool:
        places: list[int] = []
        needs_state = wanted[-1][1] == self.states
        if needs_state:
            assert self._snapshots is not None
            slot = self._snapshots.take()
            if slot is None:
                return False
            places = [slot]
        self._pages.share(kept)  # before taking, which may evict them
        places = self._take(len(wanted) - needs_state).tolist() + places
        items = [
            Item(self._host.begin_read(digest, part), number, place)
            for (digest, part, number), place in zip(wanted, places, strict=True)
        ]
        load = Load(request, items, kept, tokens, [request], len(items))
        self._loads |= {(digest, part): load for digest, part, _ in wanted}
        self.start(load)
        return True

    def come(self, load: Load, item: Item, *, is_intact: bool) -> None:
        """An item was written to the devices, or is not intact. What has come is published when nothing is left."""
        self._host.end_read(item.copy, is_intact=is_intact)
        item.has_come = is_intact
        load.left -= 1
        if not load.left and not load.is_cancelled:
            self._finish(load)

    def _finish(self, load: Load) -> None:
        is_whole = all(item.has_come for item in load.items)
        self.num_hits += load.tokens if is_whole else 0
        self.num_failures += not is_whole
        for item in load.items:
            digest, part = item.copy.digest, item.copy.part
            if part != self.states:
                if item.has_come and self._cache.insert(digest, item.place, part):
                    self._pages.keep_when_idle([item.place])
            elif item.has_come and self._snapshots is not None:
                self._snapshots.publish(digest, item.place)
            elif self._snapshots is not None:
                self._snapshots.give_back(item.place)
        if self.on_loaded is not None:
            self.on_loaded(load)
        self._host.touch(item.copy.digest for item in reversed(load.items))
        self._release(load)

    def _release(self, load: Load) -> None:
        self._pages.release(self._pages_of(load))
        for item in load.items:
            del self._loads[item.copy.digest, item.copy.part]
        self._released += load.waiting

    def _pages_of(self, load: Load) -> Int32Array:
        own = [item.place for item in load.items if item.copy.part != self.states]
        return np.concatenate([load.kept, np.array(own, np.int32)])

    def cancel(self) -> None:
        """Give back the pages of all loads, to which nothing may be written any more. Who waits may run."""
        for load in self._each():
            load.is_cancelled = True
            for item in load.items:
                if item.copy.part == self.states and self._snapshots is not None:
                    self._snapshots.give_back(item.place)
            self._release(load)

    def take_released(self) -> list[Request]:
        """Requests that need not wait any more since the last call; some may have ended."""
        released, self._released = self._released, []
        return released

    def _each(self) -> list[Load]:
        return list(dict.fromkeys(self._loads.values()))

    def held_pages(self) -> Iterator[Int32Array]:
        """The pages of each load."""
        return map(self._pages_of, self._each())

    def held_slots(self) -> list[int]:
        """The slots of snapshots that loads write."""
        return [item.place for load in self._each() for item in load.items if item.copy.part == self.states]


class _Either:
    """Copies that one of two has."""

    def __init__(self, one: Copies, other: Copies) -> None:
        self._one, self._other = one, other

    def has(self, digest: bytes, part: int) -> bool:
        return self._one.has(digest, part) or self._other.has(digest, part)


def _nobody(load: Load) -> None:
    raise AssertionError("nobody starts loads")
