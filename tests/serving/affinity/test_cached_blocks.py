"""What events say of a cache, compared with the cache itself."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.engine.events.wire import CacheGroup, Format, WireFormat
from jaxllm.kv.events import KVEvents
from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.affinity import cached_blocks
from jaxllm.serving.affinity.cached_blocks import EXPECTED_SECONDS, CachedBlocks
from jaxllm.serving.affinity.events import read_batch
from jaxllm.serving.affinity.prefixes import KnownPrefixes, Prompt

SIZE = 2
TABLES = {
    (0,): [CacheGroup("full_attention")],
    (0, 4): [CacheGroup("full_attention"), CacheGroup("sliding_window", 4)],
    (4,): [CacheGroup("sliding_window", 4)],
    (6, 3): [CacheGroup("sliding_window", 6), CacheGroup("sliding_window", 3)],
}


class Cache:
    """A cache, and what a reader of its events knows of it."""

    def __init__(self, windows: tuple[int, ...] = (0,), event_format: Format = "map", pages: int = 40) -> None:
        self.manager = KVManager(pages, SIZE, groups=CacheGroups(windows, SIZE, 16))
        self.events = KVEvents(SIZE, len(windows))
        self.manager.record(self.events)
        self.wire = WireFormat(SIZE, TABLES[windows], event_format)
        self.known = CachedBlocks()

    def read(self) -> None:
        found = [self.wire.translated(event) for event in self.events.take()]
        self.known.apply(read_batch(self.wire.encoded(0.0, found, 0)))

    def compute(self, tokens: list[int], adapter: str | None = None, salt: str | None = None) -> int:
        """The tokens that the cache itself finds of a prompt, which is then computed."""
        prompt = np.array([*tokens, 0], np.int32)
        request = Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams(), cache_salt=salt)
        if adapter:
            request.lora_request, request.adapter_digest = LoRARequest(adapter, 5, "folder"), adapter.encode()
        found = self.manager.admit(request, 0)
        assert found is not None
        table, cached = found
        self.manager.publish(request, prompt, table, cached, len(prompt))
        self.manager.release(table)
        self.read()
        return cached


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


prompts = st.lists(st.lists(st.integers(1, 3), max_size=14), max_size=25)


@pytest.mark.parametrize("windows", TABLES)
@given(prompts=prompts)
def test_hits_are_what_the_cache_itself_finds(windows: tuple[int, ...], prompts: list[list[int]]) -> None:
    cache = Cache(windows)
    for tokens in prompts:
        expected = cache.known.matched(ids(tokens))
        assert cache.compute(tokens) == expected


@pytest.mark.parametrize("event_format", ["map", "array"])
def test_adapters_salts_and_both_formats(event_format: Format) -> None:
    cache = Cache(event_format=event_format)
    cache.compute([1, 2, 3, 4], adapter="ada")
    assert cache.known.matched(ids([1, 2, 3, 4, 5]), "ada") == 4
    assert cache.known.matched(ids([1, 2, 3, 4, 5]), "bea") == 0
    assert cache.known.matched(ids([1, 2, 3, 4, 5])) == 0
    cache.compute([7, 8, 9, 9], salt="secret")
    assert cache.known.matched(ids([7, 8, 9, 9])) == 0
    cache.manager.reset_prefix_cache()
    cache.read()
    assert len(cache.known) == cache.known.matched(ids([1, 2, 3, 4]), "ada") == 0


def test_vllm_names_blocks_by_whole_digests() -> None:
    known = CachedBlocks()
    stored = ["BlockStored", [b"a" * 32, b"b" * 32], None, [1, 2, 3, 4], 2, None, "GPU", None, None, 0]
    batch: list[Any] = [1.0, [stored], 0]
    known.apply(read_batch(msgspec.msgpack.encode(batch)))
    assert known.matched(ids([1, 2, 3, 4, 5])) == 4
    batch[1] = [["BlockRemoved", [b"b" * 32], "GPU", 0]]
    known.apply(read_batch(msgspec.msgpack.encode(batch)))
    assert known.matched(ids([1, 2, 3, 4, 5])) == 2


WRONG = (b"", b"\x00", b"\x92\x01\x91\xc0", b"\x92\x01\x91\x81\xa4type\xa3odd", b"\xff" * 9)


@pytest.mark.parametrize("payload", WRONG)
def test_what_is_no_batch_is_an_error(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_batch(payload)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_blocks, "MOST_BLOCKS", 8)
    cache = Cache(pages=200)
    for number in range(20):
        cache.compute([10 + number] * 8)
        cache.known.expect(ids([50 + number] * 40))
    known = cache.known
    assert len(known) == len(known._keys) == len(known._hashes) == len(known._expected) == 8
    assert known.matched(ids([29] * 8)) == 8
    assert known.matched(ids([10] * 8)) == 0


def test_a_prompt_that_was_sent_is_expected_until_the_engine_tells() -> None:
    now = [0.0]
    cache = Cache(pages=8)
    cache.known = known = CachedBlocks(lambda: now[0])
    cache.compute([9, 9])
    known.expect(ids([1, 2, 3, 4]))
    assert known.matched(ids([1, 2, 3, 4, 5])) == 4
    cache.compute([1, 2, 3, 4])
    cache.compute([5] * 12)  # evicts it
    assert known.matched(ids([1, 2, 3, 4, 5])) == 0
    known.expect(ids([6, 6]))
    now[0] = EXPECTED_SECONDS
    assert known.matched(ids([6, 6])) == 0


def test_guesses_serve_where_events_do_not() -> None:
    known = KnownPrefixes()
    prompt = Prompt(token_ids=np.arange(200, dtype=np.int32))
    known.add(prompt, 0)
    assert known.shared(prompt, [0, 1]) == {0: 192}
    cached = known.follow(0)
    assert known.shared(prompt, [0, 1]) == {0: 192}  # nothing was heard yet
    cached.is_live = True
    assert known.shared(prompt, [0, 1]) == {}
    # Events cannot tell salts.
    salted = Prompt(token_ids=prompt.token_ids, salt="ada")
    known.add(salted, 0)
    assert known.shared(salted, [0, 1]) == {0: 192}
    assert (known.num_blocks(0), known.num_blocks(1)) == (0, None)
