"""Pages for requests, with the prefix cache between them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from tests.jaxllm.kv.replica import Replica


def request_of(tokens: list[int], *, salt: str | None = None, prompt_logprobs: int | None = None) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=np.array(tokens, np.int32),
        params=SamplingParams(prompt_logprobs=prompt_logprobs),
        cache_salt=salt,
    )


def compute(manager: KVManager, request: Request) -> npt.NDArray[np.int32]:
    """Admit a request and publish its whole prompt."""
    found = manager.admit(request, 0)
    assert found is not None
    pages, cached = found
    manager.publish(request, request.prompt_token_ids, pages, cached, len(request.prompt_token_ids))
    return pages


def test_pages_for() -> None:
    manager = KVManager(9, 4)
    assert [manager.pages_for(count) for count in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_a_second_request_shares_the_full_pages() -> None:
    manager = KVManager(9, 2)
    first = compute(manager, request_of([1, 2, 3, 4, 5]))
    found = manager.admit(second := request_of([1, 2, 3, 4, 9]), 0)
    assert found is not None
    pages, cached = found
    assert cached == second.num_cached_tokens == 4
    assert pages[:2].tolist() == first[:2].tolist()
    assert pages[2] not in first
    assert (manager.prefix_queries, manager.prefix_hits) == (10, 4)
    assert manager.num_held_pages == 4
    manager.check_integrity([first, pages])


def test_the_last_token_of_a_full_hit_is_computed_again() -> None:
    manager = KVManager(9, 2)
    compute(manager, request_of([1, 2, 3, 4]))
    found = manager.admit(request_of([1, 2, 3, 4]), 0)
    assert found is not None
    assert found[1] == 2


def test_unpublished_pages_are_not_shared() -> None:
    manager = KVManager(9, 2)
    assert manager.admit(request_of([1, 2, 3]), 0) is not None
    found = manager.admit(request_of([1, 2, 3]), 0)
    assert found is not None
    assert found[1] == 0


def test_salts_do_not_share() -> None:
    manager = KVManager(20, 2)
    compute(manager, request_of([1, 2, 3], salt="a"))
    for salt, expected in ((None, 0), ("b", 0), ("a", 2)):
        found = manager.admit(request_of([1, 2, 3], salt=salt), 0)
        assert found is not None
        assert found[1] == expected


def test_prompt_logprobs_need_the_whole_prompt_until_the_first_token() -> None:
    manager = KVManager(20, 2)
    compute(manager, request_of([1, 2, 3]))
    request = request_of([1, 2, 3], prompt_logprobs=0)
    found = manager.admit(request, 0)
    assert found is not None
    assert found[1] == 0
    assert manager.prefix_queries == 3, "the request did not ask the cache"
    manager.release(found[0])
    request.output_token_ids, request.num_preemptions = [4], 1
    found = manager.admit(request, 0)
    assert found is not None
    assert found[1] == 2
    assert (request.num_cached_tokens, manager.prefix_queries) == (0, 3), "resumption is not counted"


def test_a_request_that_asks_for_it_reads_nothing_and_is_read_by_others() -> None:
    manager = KVManager(20, 2)
    first = request_of([1, 2, 3])
    compute(manager, first)
    alone = request_of([1, 2, 3, 4, 5])
    alone.params = SamplingParams(skip_reading_prefix_cache=True)
    found = manager.admit(alone, 0)
    assert found is not None
    assert found[1] == 0
    manager.publish(alone, alone.prompt_token_ids, found[0], 0, 5)
    found = manager.admit(request_of([1, 2, 3, 4, 5]), 0)
    assert found is not None
    assert found[1] == 4


def test_they_may_still_be_read_by_others() -> None:
    manager = KVManager(20, 2)
    compute(manager, request_of([1, 2, 3], prompt_logprobs=0))
    found = manager.admit(request_of([1, 2, 3]), 0)
    assert found is not None
    assert found[1] == 2


def test_without_prefix_caching_nothing_is_hashed_or_kept() -> None:
    manager = KVManager(9, 2, enable_prefix_caching=False)
    request = request_of([1, 2, 3])
    pages = compute(manager, request)
    manager.release(pages)
    found = manager.admit(request_of([1, 2, 3]), 0)
    assert found is not None
    assert found[1] == 0
    assert request.page_hashes == []
    assert (manager.prefix_queries, manager.num_cached_pages) == (0, 0)


def test_no_pages_means_no_change() -> None:
    manager = KVManager(4, 2)
    pages = compute(manager, request_of([1, 2, 3, 4]))
    assert manager.admit(request_of([9, 2, 3, 4]), 0) is None
    assert manager.grow(2) is None
    assert manager.num_free_pages == 1
    manager.release(pages)
    # Two of the three pages are its own prefix, idle: they cannot be counted as room for the rest as well.
    assert manager.admit(request_of([1, 2, 3, 4, 5, 6, 7]), 0) is None
    assert manager.admit(request_of([1, 2, 3, 4, 5, 6]), 1) is None
    found = manager.admit(request_of([1, 2, 3, 4, 5, 6]), 0)
    assert found is not None
    assert found[1] == 4
    manager.check_integrity([found[0]])


def test_reset_only_when_nobody_holds_pages() -> None:
    manager = KVManager(9, 2)
    pages = compute(manager, request_of([1, 2, 3]))
    assert not manager.reset_prefix_cache()
    assert manager.num_cached_pages == 1
    manager.release(pages)
    assert manager.reset_prefix_cache()
    found = manager.admit(request_of([1, 2, 3]), 0)
    assert found is not None
    assert found[1] == 0


def test_a_prompt_is_hashed_once() -> None:
    manager = KVManager(3, 2)
    compute(manager, request_of([9, 9, 9]))
    request = request_of([1, 2, 3, 4])
    assert manager.admit(request, 0) is None, "no free page: not even looked up"
    manager = KVManager(3, 2)
    held = manager.grow(1)
    assert held is not None
    assert manager.admit(request, 0) is None
    digests = request.page_hashes.copy()
    assert manager.admit(request, 0) is None
    assert all(old is new for old, new in zip(digests, request.page_hashes, strict=True))


def test_usage() -> None:
    manager = KVManager(5, 2)
    assert manager.usage == 0.0
    manager.grow(1)
    assert manager.usage == 0.25


@dataclass(eq=False)
class Holder:
    request: Request
    tokens: list[int]
    pages: npt.NDArray[np.int32]
    computed: int


class ManagerMachine(RuleBasedStateMachine):
    """Writes down what the device would write into each page, and checks it wherever a request would read it."""

    @initialize(num_pages=st.integers(2, 14), block_size=st.integers(1, 3), caching=st.booleans(), read=st.booleans())
    def start(self, num_pages: int, block_size: int, caching: bool, read: bool) -> None:
        self.manager = KVManager(num_pages, block_size, enable_prefix_caching=caching)
        self.replica = Replica(self.manager) if read else None
        self.contents: dict[int, dict[int, tuple[int, ...]]] = {page: {} for page in range(num_pages)}
        self.holders: list[Holder] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8), headroom=st.integers(0, 2))
    def admit(self, tokens: list[int], headroom: int) -> None:
        request = request_of(tokens)
        free = self.manager.num_free_pages
        found = self.manager.admit(request, headroom)
        if found is None:
            assert free - self.manager.pages_for(len(tokens)) < headroom
            assert self.manager.num_free_pages == free
            return
        pages, cached = found
        assert self.manager.num_free_pages >= headroom
        assert len(pages) == self.manager.pages_for(len(tokens))
        assert cached < len(tokens)
        assert cached % self.manager.block_size == 0
        self.holders.append(Holder(request, tokens, pages, cached))
        self._check_reads(self.holders[-1])

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute(self, data: st.DataObject, count: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        end = min(len(holder.tokens), holder.computed + count)
        size = self.manager.block_size
        for position in range(holder.computed, end):
            page = int(holder.pages[position // size])
            assert not any(page in other.pages for other in self.holders if other is not holder), "shared and written"
            self.contents[page][position % size] = tuple(holder.tokens[: position + 1])
        tokens = np.array(holder.tokens, np.int32)
        self.manager.publish(holder.request, tokens, holder.pages, holder.computed, end)
        holder.computed = end
        self._check_reads(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        count = self.manager.pages_for(len(holder.tokens) + 1) - len(holder.pages)
        pages = self.manager.grow(count)
        if pages is None:
            assert count > self.manager.num_free_pages
            return
        holder.pages = np.concatenate([holder.pages, pages])
        holder.tokens.append(token)

    @precondition(lambda self: any(holder.computed for holder in self.holders))
    @rule(data=st.data(), token=st.integers(0, 1))
    def fork(self, data: st.DataObject, token: int) -> None:
        """As beams do: share what is full, copy what is partly filled, and go on with a token of one's own."""
        holder = data.draw(st.sampled_from([holder for holder in self.holders if holder.computed]))
        size, computed = self.manager.block_size, holder.computed
        full, tokens = computed // size, [*holder.tokens[:computed], token]
        own = self.manager.grow(self.manager.pages_for(len(tokens)) - full)
        if own is None:
            return
        self.manager.share(holder.pages[:full])
        if computed % size:
            self.contents[int(own[0])] = dict(self.contents[int(holder.pages[full])])
        request = request_of(tokens)
        request.page_hashes = holder.request.page_hashes[:full]
        self.holders.append(Holder(request, tokens, np.concatenate([holder.pages[:full], own]), computed))
        self._check_reads(self.holders[-1])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.manager.release(holder.pages)

    @rule()
    def reset(self) -> None:
        assert self.manager.reset_prefix_cache() == (not self.holders)
        if not self.holders:
            assert self.manager.num_cached_pages == 0

    def _check_reads(self, holder: Holder) -> None:
        size = self.manager.block_size
        for position in range(holder.computed):
            page = int(holder.pages[position // size])
            assert self.contents[page][position % size] == tuple(holder.tokens[: position + 1])

    @invariant()
    def nothing_leaks(self) -> None:
        if self.replica is not None:
            self.replica.check()
        self.manager.check_integrity([holder.pages for holder in self.holders])
        if not self.holders:
            assert self.manager.num_free_pages == self.manager.num_pages - 1
        if not self.manager.enable_prefix_caching:
            assert self.manager.num_cached_pages == 0

    def teardown(self) -> None:
        for holder in self.holders:
            self._check_reads(holder)


ManagerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestManagerMachine = ManagerMachine.TestCase
