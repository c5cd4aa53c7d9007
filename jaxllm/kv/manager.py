"""Pages for requests: what is cached already, what is new, and what goes back."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from jaxllm.kv.events import KVEvents
from jaxllm.kv.groups import CacheGroups, TableGroup
from jaxllm.kv.lifetimes import PageLife, PageLifetimes
from jaxllm.kv.pages import NULL_PAGE, Int32Array, PagePool
from jaxllm.kv.prefix import PrefixCache, extend_digest, extend_digests, page_key, root_digest
from jaxllm.kv.retention import Retention
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.kv.tiers.host_pool import HostPool
from jaxllm.kv.tiers.leases import Lease, Leases
from jaxllm.kv.tiers.loads import Load, Loads
from jaxllm.kv.tiers.promotions import Wanted
from jaxllm.kv.tiers.stores import Stores
from jaxllm.kv.tiers.tier import Tier
from jaxllm.requests.request import Request


class KVManager:
    """Hands KV pages to requests and shares those that hold equal prefixes.

    `num_pages` counts the null page 0, which is never handed out; `block_size` is the tokens in a page. `groups` says
    which page tables a request has; one that keeps everything by default. The pages of a request are one array for all
    its tables, one after the other and all of one width: `NULL_PAGE` where a table has no page, or none any more.
    Where layers keep states, prefixes are found as far as there are `snapshots` of them. `retention_interval` says, in
    tokens, how many windows are worth keeping alongside those where hits are likely to end, see `Retention`.

    `prefix_queries` and `prefix_hits` count prompt tokens looked up in and found in the prefix cache, once per
    request (going on after preemption, or after the end of another engine, is not counted).
    """

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        groups: CacheGroups | None = None,
        snapshots: SnapshotPool | None = None,
        retention_interval: int | None = 0,
    ) -> None:
        self.num_pages = num_pages
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.groups = CacheGroups(page_size=block_size) if groups is None else groups
        self.snapshots = snapshots
        assert self.groups.page_size == block_size
        assert not enable_prefix_caching or self.groups.has_states == (snapshots is not None)
        self._num_tables = self.groups.num_tables
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.weights_version = 0
        """Version of the weights with which pages are computed; pages of other versions are never found."""
        self.tier: Tier | None = None
        """Where pages are copied to, and come back from, if anywhere."""
        self._events: KVEvents | None = None
        self._pool = PagePool(num_pages)
        self._lifetimes: PageLifetimes | None = None
        self._cache = PrefixCache(self.groups.num_tables, 0 if 0 in self.groups.windows else num_pages)
        self.retention = Retention(self.groups, retention_interval)
        keeps_all = [self.retention.keeps_all(group) for group in self.groups.all for _ in group.tables]
        self._wanted: npt.NDArray[np.bool_] = np.array(keeps_all)  # of each table, whether every page is

    def watch_lifetimes(self, share: float) -> None:
        """Follow the contents of this share of the pages from now on."""
        self._lifetimes = self._pool.watcher = PageLifetimes(share)

    def take_lives(self) -> tuple[PageLife, ...]:
        """Lives of pages that have ended since the last call, where they are followed."""
        return () if self._lifetimes is None else self._lifetimes.take()

    def record(self, events: KVEvents) -> None:
        """Note from now on what can be found in the cache, and what no more."""
        self._events = self._cache.events = events
        if self.snapshots is not None:
            self.snapshots.events = events
        if self.tier is not None:
            self.tier.record(events)

    def use_tier(self, host: HostPool) -> Tier:
        """Copy pages to `host` from now on, and find them there."""
        stores = Stores(host, self._cache, self.snapshots, self.groups.num_tables)
        loads = Loads(host, self._cache, self._pool, self.groups, self.snapshots, self._take)
        loads.on_loaded = self._note_load
        self.tier = Tier(host, stores, loads)
        if self._events is not None:
            self.tier.record(self._events)
        return self.tier

    @property
    def num_free_pages(self) -> int:
        """Pages that can be handed out now, including cached ones that nobody holds."""
        return self._pool.num_free

    @property
    def num_held_pages(self) -> int:
        """Pages that running requests hold."""
        return self._pool.num_held

    @property
    def num_cached_pages(self) -> int:
        """Pages that the prefix cache can find, held or not."""
        return len(self._cache)

    @property
    def usage(self) -> float:
        """Share of the pages that running requests hold, 0 to 1."""
        return self._pool.num_held / max(1, self.num_pages - 1)

    def page_states(self) -> npt.NDArray[np.uint8]:
        """See `PagePool.states`."""
        return self._pool.states()

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens fill, in one table."""
        return -(-num_tokens // self.block_size)

    def admit(self, request: Request, headroom: int) -> tuple[Int32Array, int] | None:
        """Pages for the tokens the request has so far, as many as possible of them from the prefix cache.

        Returns the pages of all tables, and how many tokens their contents already cover (a multiple of the page size,
        less than the tokens of the request, so that its last token is always computed). Tables of layers with windows
        get what `CacheGroups.end` says, and nothing before what is seen. None when fewer than `headroom` pages of each
        table would stay free.
        """
        headroom *= self.groups.num_tables
        if self._pool.num_free <= headroom:
            return None
        cached = self._find_prefix(request)
        num_cached = cached.shape[1] * self.block_size
        count = self.groups.new_pages(num_cached, request.num_tokens)
        shared = cached.T.ravel()
        if self.groups.gives_back:
            shared = shared[shared != NULL_PAGE]
        if count + headroom > self._pool.num_free - self._pool.count_idle(shared):
            return None
        self._pool.share(shared)  # before taking, which may evict them
        if self.retention.is_sparse and self.enable_prefix_caching:
            self._pool.keep_when_idle(shared)
            request.kept_ends = self.retention.ends(request.num_tokens, self._num_shared(request))
        pages = self._behind(cached, request.num_tokens, self._take(count))
        if self.tier is not None:
            self.tier.stores.offer(shared.tolist())
            request.asks_host = request.asks_files = True
        if request.num_preemptions == 0 and not request.output_token_ids:
            request.num_cached_tokens = num_cached
            if self._reads_cache(request):
                self.prefix_queries += request.num_tokens
                self.prefix_hits += num_cached
        return pages, num_cached

    def _behind(self, cached: Int32Array, num_tokens: int, new: Int32Array) -> Int32Array:
        """The pages of all tables from those that were cached, [tables, pages], and those that are new."""
        if len(cached) == 1:
            return np.concatenate([cached[0], new])
        first = cached.shape[1]
        pages = np.full((len(cached), self.pages_for(num_tokens)), NULL_PAGE, np.int32)
        pages[:, :first] = cached
        for group in self.groups.all:
            end = self.groups.end(group, first * self.block_size, num_tokens)
            for table in group.tables:
                pages[table, first:end], new = new[: end - first], new[end - first :]
        return pages.ravel()

    def begin_load(self, request: Request, headroom: int) -> bool:
        """Whether a request that could be admitted now is to wait for pages from the host, see `Loads.begin`."""
        headroom *= self.groups.num_tables
        if self.tier is None or not request.asks_host or self._pool.num_free <= headroom:
            return False
        cached = self._find_prefix(request)
        shared = cached[cached != NULL_PAGE]
        count = self.groups.new_pages(cached.shape[1] * self.block_size, request.num_tokens)
        if not self._reads_cache(request) or count + headroom > self._pool.num_free - self._pool.count_idle(shared):
            return False
        return self.tier.loads.begin(request, self._readable(request), cached.shape[1], headroom)

    def use_leases(self, seconds: float) -> Leases:
        """Keep copies for other engines from now on, each prompt's for so many seconds."""
        assert self.tier is not None
        tier, states = self.tier, self.groups.num_tables
        tier.leases = Leases(tier.host, self._cache, self._pool, self.snapshots, tier.stores, states, seconds)
        return tier.leases

    def held_for_others(self, request: Request) -> tuple[Lease, int] | None:
        """A lease on what another engine needs to go on after a request's prompt, and the tokens that it has.

        None where there is nothing: no full page, or no state to go on from.
        """
        assert self.tier is not None
        assert self.tier.leases is not None
        digests = request.page_hashes[: (len(request.prompt_token_ids) - 1) // self.block_size]
        count = self.tier.loads.longest(digests)
        if not count:
            return None
        needed = self.tier.loads.needed(digests[:count])
        return self.tier.leases.grant(request.request_id, needed), count * self.block_size

    def wanted_from_others(self, request: Request, most_tokens: int | None) -> tuple[list[Wanted], int]:
        """What a request needs that is not here, to begin with at most so many tokens; and the tokens that it adds."""
        assert self.tier is not None
        if not self._reads_cache(request):
            return [], 0
        found = self._find_prefix(request).shape[1]
        digests = self._readable(request)
        if most_tokens is not None:
            digests = digests[: most_tokens // self.block_size]
        here = max(found, self.tier.loads.longest(digests))
        if len(digests) <= here:
            return [], 0
        return self.tier.loads.absent(digests), (len(digests) - here) * self.block_size

    def shortage(self, request: Request, headroom: int) -> int:
        """How many more pages would have to be free for `admit`; 0 when there are enough."""
        cached = self._find_prefix(request)
        count = self.groups.new_pages(cached.shape[1] * self.block_size, request.num_tokens)
        shared = cached[cached != NULL_PAGE]
        headroom *= self.groups.num_tables
        return max(0, count + headroom - self._pool.num_free + self._pool.count_idle(shared))

    def grow(self, count: int) -> Int32Array | None:
        """`count` more pages, int32 [count]; None, and no change, when there are not that many."""
        return self._take(count) if count <= self._pool.num_free else None

    def share(self, pages: Int32Array) -> None:
        """Add one more holder to pages that a request holds, all of them full: nobody writes them any more."""
        self._pool.share(pages)

    def publish(self, request: Request, token_ids: Int32Array, pages: Int32Array, start: int, end: int) -> None:
        """Make the pages that became full when positions `start` to `end` were computed available to other requests.

        `token_ids` and `pages` are the request's own, from position 0, at least up to `end`.
        """
        size = self.block_size
        first, last = start // size, end // size
        if not self.enable_prefix_caching or first == last:
            return
        digests = request.page_hashes
        tokens = token_ids[: last * size]
        extend_digests(digests, tokens, size, self._root_of(request), request)
        new = digests[first:last]
        self._cache.remember(new)
        tables = pages.reshape(self._num_tables, -1)[:, first : first + len(new)]
        absent = None if self._events is None else self._cache.absent(tables.T)
        inserted: list[list[int]] = []
        for table, own in enumerate(tables.tolist()):
            pairs = zip(new, own, strict=True)
            inserted.append([page for digest, page in pairs if self._cache.insert(digest, page, table)])
        self._keep(inserted)
        if absent is not None:
            self._note(request, first, tokens[first * size :], tables.T, absent)
        if self.retention.is_sparse:
            self._retain(request, first, last)

    def _note(
        self, request: Request, first: int, token_ids: Int32Array, pages: Int32Array, absent: list[set[int]]
    ) -> None:
        """Note those of a request's pages from number `first` on, int32 [n, tables], that were `absent` till now."""
        assert self._events is not None
        for table, own in enumerate(pages.T.tolist()):
            new = []
            for number, page in enumerate(own, first):
                if page in absent[table] and self._cache.holds(request.page_hashes[number], page, table):
                    absent[table].remove(page)
                    new.append(number)
            self._events.stored(request, first, token_ids, table, new)

    def _note_load(self, load: Load) -> None:
        """Note those pages that have come back for a request, and can be found now."""
        if self._events is None:
            return
        request, size = load.request, self.block_size
        tokens = np.concatenate([request.prompt_token_ids, np.array(request.output_token_ids, np.int32)])
        for table in range(self._num_tables):
            items = [item for item in load.items if item.copy.part == table]
            new = [item.number for item in items if self._cache.holds(item.copy.digest, item.place, table)]
            first = min(new, default=0)
            self._events.stored(request, first, tokens[first * size :], table, new)

    def _want(self, group: TableGroup, digests: list[bytes]) -> None:
        """The pages of these digests are worth keeping in tables of a group, whoever holds them."""
        for table in group.tables:
            pages = self._cache.pages_of(digests, table)
            self._pool.want(pages)
            if self.tier is not None:
                self.tier.stores.offer(pages)

    def publish_one_each(
        self, requests: Sequence[Request], numbers: Sequence[int], token_ids: Int32Array, pages: Int32Array
    ) -> None:
        """As above, for one page of each request, of number `numbers`: what is usual where all of them decode.

        `token_ids` is int32 [n, block_size], `pages` int32 [n, tables]. All pages before them are published.
        """
        data, stride = token_ids.tobytes(), 4 * self.block_size
        new: list[bytes] = []
        offset = 0
        for request, number in zip(requests, numbers, strict=True):
            digests = request.page_hashes
            if len(digests) == number:
                page = data[offset : offset + stride]
                # Nearly all have token ids alone: they need no call.
                if request.prompt_embeds is not None or request.media is not None or request.adapter_start:
                    page += page_key(request, number, self.block_size)
                extend_digest(digests, page, b"" if digests else self._root_of(request))
            new.append(digests[number])
            offset += stride
        self._cache.remember(new)
        absent = None if self._events is None else self._cache.absent(pages)
        inserted = self._cache.insert_each(new, pages)
        if sum(map(len, inserted)) == pages.size:  # what is usual, at once
            self._pool.keep_when_idle(pages, wanted=self._wanted)
            if self.tier is not None:
                self.tier.stores.offer(pages[:, self._wanted].ravel().tolist())
        else:
            self._keep(inserted)
        if absent is not None:
            for row, (request, number) in enumerate(zip(requests, numbers, strict=True)):
                self._note(request, number, token_ids[row], pages[row : row + 1], absent)
        if self.retention.is_sparse:
            for request, number in self.retention.concerned(requests, numbers):
                self._retain(request, number, number + 1)

    def _keep(self, inserted: list[list[int]]) -> None:
        """Keep the contents of pages of each table."""
        for group in self.groups.all:
            pages = [page for table in group.tables for page in inserted[table]]
            keeps_all = self.retention.keeps_all(group)
            self._pool.keep_when_idle(pages, wanted=keeps_all)
            if self.tier is not None and keeps_all:
                self.tier.stores.offer(pages)

    def _retain(self, request: Request, first: int, last: int) -> None:
        """Want those of these pages of a request that are worth keeping in tables with windows."""
        for group in self.groups.all:
            if group.window:
                for places in self.retention.ranges(group, request.kept_ends, first, last):
                    self._want(group, request.page_hashes[places.start : places.stop])

    def leaves(self, request: Request, num_computed: int) -> None:
        """A request is about to give back its pages: others, or itself when it returns, may go on where it stops.

        The pages of `num_computed` tokens are published.
        """
        if self.tier is not None:
            self.tier.used(request.page_hashes)
        if not self.retention.is_sparse:
            return
        end = min(num_computed // self.block_size, len(request.page_hashes))
        for group in self.groups.all:
            if end and group.window:
                places = self.retention.last_window(group, end)
                self._want(group, request.page_hashes[places.start : places.stop])

    def release(self, pages: Int32Array) -> None:
        """Take back the pages of one request, given in order. Cached ones stay findable until their room is needed."""
        if self.groups.num_tables > 1:
            pages = pages.reshape(self.groups.num_tables, -1).T.ravel()
        self._pool.release(pages[pages != NULL_PAGE] if self.groups.gives_back else pages)

    def release_some(self, pages: Int32Array) -> None:
        """Take back pages of several requests, which some of them may share."""
        if self._pool.have_one_holder(pages):
            self._pool.release_last(pages)
            return
        while len(pages):
            _, places = np.unique(pages, return_index=True)
            self._pool.release(pages[np.sort(places)])
            pages = np.delete(pages, places)

    def use_weights(self, version: int) -> None:
        """Pages are computed with weights of this version from now on. No request holds any."""
        assert not self._pool.num_held
        self.weights_version = version

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and no change, while a request holds pages (as in vLLM).

        A running request would go on to publish pages that continue contents computed before the reset.
        """
        if self.tier is not None:
            self.tier.cancel()
        if self._pool.num_held:
            return False
        if self.tier is not None:
            self.tier.clear()
        self._cache.clear()
        self._pool.forget_contents()
        if self.snapshots is not None:
            self.snapshots.clear()
        return True

    def _reads_cache(self, request: Request) -> bool:
        # Log-probabilities of the prompt need its hidden states; once the first token is out they were delivered.
        wants_prompt = request.params.prompt_logprobs is not None and not request.output_token_ids
        return self.enable_prefix_caching and not wants_prompt and not request.params.skip_reading_prefix_cache

    def _root_of(self, request: Request) -> bytes:
        """Where the chain of a request's digests starts; not computed where the chain has pages."""
        if request.page_hashes:
            return b""
        adapter = b"" if request.adapter_start else request.adapter_digest
        return root_digest(request.cache_salt, self.weights_version, adapter)

    def _find_prefix(self, request: Request) -> Int32Array:
        """The cached pages that the request can begin with, int32 [tables, pages]."""
        if not self._reads_cache(request):
            return np.zeros((self.groups.num_tables, 0), np.int32)
        tokens = request.prompt_token_ids
        extend_digests(request.page_hashes, tokens, self.block_size, self._root_of(request), request)
        return self._cache.find_for(self._readable(request), self.groups, self.snapshots)

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens that a request would find in the prefix cache if it were admitted now."""
        return self._find_prefix(request).shape[1] * self.block_size

    def num_shared_tokens(self, request: Request) -> int:
        """Tokens that a request which was just admitted has in common with others, as far as that is known.

        There may be more of them than it begins with, where a window or a snapshot of states is not cached.
        """
        return self._num_shared(request) * self.block_size

    def _num_shared(self, request: Request) -> int:
        if not self._reads_cache(request):
            return 0
        return self._cache.num_shared(self._readable(request), self.groups)

    def _readable(self, request: Request) -> list[bytes]:
        """The digests of the pages that a request may begin with: its last token is always computed."""
        return request.page_hashes[: (request.num_tokens - 1) // self.block_size]

    def _take(self, count: int) -> Int32Array:
        pages, evicted = self._pool.take(count)
        self._cache.forget(evicted)
        return pages

    def check_integrity(self, held: Iterable[Int32Array]) -> None:
        """Assert that reference counts equal the holders in `held` (one int32 array per request), and nothing leaks."""
        counts = np.zeros(self.num_pages, np.int32)
        if self.tier is not None:
            held = [*held, *self.tier.loads.held_pages()]
            self.tier.host.check_integrity()
            if self.tier.leases is not None:
                held = [*held, *self.tier.leases.held_pages()]
                self.tier.leases.check_integrity()
        for pages in held:
            own = pages[pages != NULL_PAGE] if self.groups.gives_back else pages
            assert len(set(own.tolist())) == len(own), "a request holds a page twice"
            counts[own] += 1
        assert counts[0] == 0, "the null page was handed out"
        assert np.array_equal(counts, self._pool.ref_counts)
        self._pool.check_integrity()
        self._cache.check_integrity(self._pool.retained_pages())
