"""Pages for requests: what is cached already, what is new, and what goes back."""

from collections.abc import Iterable

import numpy as np

from jaxllm.kv.pages import Int32Array, PagePool
from jaxllm.kv.prefix import PrefixCache, extend_digests
from jaxllm.request import Request


class KVManager:
    """Hands KV pages to requests and shares those that hold equal prefixes.

    `num_pages` counts the null page 0, which is never handed out; `block_size` is the tokens in a page.
    `prefix_queries` and `prefix_hits` count prompt tokens looked up in and found in the prefix cache, once per
    request (resumption after preemption is not counted).
    """

    def __init__(self, num_pages: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_pages = num_pages
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._pool = PagePool(num_pages)
        self._cache = PrefixCache()

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

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens fill."""
        return -(-num_tokens // self.block_size)

    def admit(self, request: Request, headroom: int) -> tuple[Int32Array, int] | None:
        """Pages for every token the request has so far, as many as possible of them from the prefix cache.

        Returns the pages in order, int32 [pages], and how many tokens their contents already cover (a multiple of the
        page size, less than the tokens of the request, so that its last token is always computed). None when fewer
        than `headroom` pages would stay free.
        """
        if self._pool.num_free <= headroom:
            return None
        cached = np.array(self._find_prefix(request), np.int32)
        count = self.pages_for(request.num_tokens) - len(cached)
        if count + headroom > self._pool.num_free - self._pool.count_idle(cached):
            return None
        self._pool.share(cached)  # before taking, which may evict them
        pages = np.concatenate([cached, self._take(count)])
        num_cached = len(cached) * self.block_size
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached
            if self._reads_cache(request):
                self.prefix_queries += request.num_tokens
                self.prefix_hits += num_cached
        return pages, num_cached

    def shortage(self, request: Request, headroom: int) -> int:
        """How many more pages would have to be free for `admit`; 0 when there are enough."""
        cached = np.array(self._find_prefix(request), np.int32)
        count = self.pages_for(request.num_tokens) - len(cached)
        return max(0, count + headroom - self._pool.num_free + self._pool.count_idle(cached))

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
        extend_digests(digests, token_ids[: last * size], size, request.cache_salt)
        for digest, page in zip(digests[first:last], pages[first:last].tolist(), strict=True):
            if self._cache.insert(digest, page):
                self._pool.keep_when_idle(page)

    def release(self, pages: Int32Array) -> None:
        """Take back the pages of one request, given in order. Cached ones stay findable until their room is needed."""
        self._pool.release(pages)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and no change, while a request holds pages (as in vLLM).

        A running request would go on to publish pages that continue contents computed before the reset.
        """
        if self._pool.num_held:
            return False
        self._cache.clear()
        self._pool.forget_contents()
        return True

    def _reads_cache(self, request: Request) -> bool:
        # Log-probabilities of the prompt need its hidden states; once the first token is out they were delivered.
        wants_prompt = request.params.prompt_logprobs is not None and not request.output_token_ids
        return self.enable_prefix_caching and not wants_prompt

    def _find_prefix(self, request: Request) -> list[int]:
        if not self._reads_cache(request):
            return []
        extend_digests(request.page_hashes, request.prompt_token_ids, self.block_size, request.cache_salt)
        return self._cache.find(request.page_hashes, (request.num_tokens - 1) // self.block_size)

    def _take(self, count: int) -> Int32Array:
        pages, evicted = self._pool.take(count)
        self._cache.forget(evicted)
        return pages

    def check_integrity(self, held: Iterable[Int32Array]) -> None:
        """Assert that reference counts equal the holders in `held` (one int32 array per request), and nothing leaks."""
        counts = np.zeros(self.num_pages, np.int32)
        for pages in held:
            assert len(set(pages.tolist())) == len(pages), "a request holds a page twice"
            counts[pages] += 1
        assert counts[0] == 0, "the null page was handed out"
        assert np.array_equal(counts, self._pool.ref_counts)
        self._pool.check_integrity()
        self._cache.check_integrity(self._pool.kept_pages())
