"""The publisher before real sockets: what is live, what is replayed, snapshots, and subscribers that do not read."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from jaxllm.config.kv_events import KVEventsSettings
from jaxllm.engine.events.endpoints import endpoint_of, opened
from jaxllm.engine.events.publisher import Publisher
from jaxllm.engine.events.wire import CacheGroup
from jaxllm.errors import ConfigError
from jaxllm.kv.events import KVEvents, Stored
from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from tests.jaxllm.engine.events.consumer import (
    IdentifiedBatch,
    Index,
    KVEventBatch,
    PositionalBatch,
)

ANY = "tcp://*:0"
SECONDS = 20_000  # in ms, for one message
GROUPS = (0, 4)


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")


class Source:
    """A cache of two groups whose events are published."""

    def __init__(self, **settings: Any) -> None:
        self.manager = KVManager(17, 2, groups=CacheGroups(GROUPS, 2, 16))
        events = KVEvents(2, 2)
        groups = [CacheGroup("full_attention"), CacheGroup("sliding_window", 4)]
        self.publisher = Publisher(KVEventsSettings(**{"endpoint": ANY, **settings}), 3, events, 2, groups)
        self.manager.record(events)

    def compute(self, tokens: list[int], adapter: str = "") -> None:
        prompt = np.array(tokens, np.int32)
        request = Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams())
        if adapter:
            request.lora_request, request.adapter_digest = LoRARequest(adapter, 5, "folder"), adapter.encode()
        found = self.manager.admit(request, 0)
        assert found is not None
        self.manager.publish(request, prompt, *found, len(tokens))
        self.manager.release(found[0])
        self.publisher.flush()

    def held(self) -> set[tuple[int, int]]:
        maps = enumerate(self.manager._cache._page_of)
        return {(table, int.from_bytes(digest[-8:], "big")) for table, pages in maps for digest in pages}


@contextmanager
def source_of(**settings: Any) -> Iterator[Source]:
    source = Source(**settings)
    try:
        yield source
    finally:
        source.publisher.close()


@contextmanager
def connected(kind: int, endpoint: str | None) -> Iterator[Any]:
    assert endpoint is not None
    with zmq.Context() as context, context.socket(kind) as found:
        found.setsockopt(zmq.LINGER, 0)
        found.setsockopt(zmq.RCVTIMEO, SECONDS)
        if kind == zmq.SUB:
            found.setsockopt(zmq.SUBSCRIBE, b"kv")
        found.connect(endpoint)
        yield found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def replayed(publisher: Publisher, first: int) -> tuple[list[int], list[bytes], set[bytes]]:
    """Numbers, payloads and topics of a replay."""
    with connected(zmq.DEALER, publisher.source.replay_endpoint) as dealer:
        dealer.send_multipart([b"", first.to_bytes(8, "big")])
        numbers: list[int] = []
        payloads: list[bytes] = []
        topics: set[bytes] = set()
        while True:
            delimiter, topic, number, payload = dealer.recv_multipart()
            assert delimiter == b""
            if number == b"\xff" * 8:
                assert (topic, payload) == (b"", b"")
                return numbers, payloads, topics
            numbers.append(int.from_bytes(number, "big"))
            payloads.append(payload)
            topics.add(topic)


def test_replay_and_live_events_lead_to_what_the_cache_holds() -> None:
    with source_of(topic="kv@host@model", replay_endpoint=ANY) as source:
        source.compute([1, 2, 3, 4, 5])
        until(lambda: len(source.publisher._replayable) == 1)
        with connected(zmq.SUB, source.publisher.source.endpoint) as sub:
            index, seen = Index(), -1
            while seen < 0:  # until the subscription has arrived
                source.compute([*range(20, 23)])
                source.manager.reset_prefix_cache()
                source.publisher.flush()
                if sub.poll(50):
                    topic, number, _ = sub.recv_multipart()
                    assert topic == b"kv@host@model"
                    seen = int.from_bytes(number, "big")
            numbers, payloads, topics = replayed(source.publisher, 0)
            assert (numbers, topics) == (list(range(len(numbers))), {b"kv@host@model"})
            for payload in payloads:
                batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
                assert batch.data_parallel_rank == 3
                assert abs(batch.ts - time.time()) < 60
                index.apply(batch.events)
            last = -1
            for step in range(12):  # evicts
                source.compute([step, *range(step, step + 5)], adapter="a" if step % 2 else "")
                while True:
                    _, number, payload = sub.recv_multipart()
                    last = int.from_bytes(number, "big")
                    if last > numbers[-1]:
                        index.apply(msgspec.msgpack.decode(payload, type=KVEventBatch).events)
                    if last == source.publisher._next - 1:
                        break
                assert set(index.copies) == source.held()
            assert replayed(source.publisher, last)[0] == [last]
            assert replayed(source.publisher, last + 1)[0] == []


def test_the_first_events_field_by_field() -> None:
    with source_of(replay_endpoint=ANY) as source:
        source.compute([1, 2, 3, 4, 5], adapter="french")
        source.manager.reset_prefix_cache()
        source.publisher.flush()
        until(lambda: len(source.publisher._replayable) == 2)
        _, (first, second), _ = replayed(source.publisher, 0)
        _, events, rank = msgspec.msgpack.decode(first)
        one, other = events[0]["block_hashes"]
        assert rank == 3
        assert {0 < value < 2**64 for value in (one, other)} == {True}
        assert events[0] == {
            "type": "BlockStored",
            "block_hashes": [one, other],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 2,
            "lora_id": 5,
            "medium": "GPU",
            "lora_name": "french",
            "extra_keys": [["french"], ["french"]],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        assert events[1] == {
            **events[0],
            "group_idx": 1,
            "kv_cache_spec_kind": "sliding_window",
            "kv_cache_spec_sliding_window": 4,
        }
        assert msgspec.msgpack.decode(second)[1] == [{"type": "AllBlocksCleared"}]


def test_events_as_arrays_for_older_readers() -> None:
    with source_of(replay_endpoint=ANY, event_format="array") as source:
        for step in range(12):
            source.compute([step, *range(step, step + 5)])
        until(lambda: len(source.publisher._replayable) == 12)
        index = Index()
        for payload in replayed(source.publisher, 0)[1]:
            index.apply(list(msgspec.msgpack.decode(payload, type=PositionalBatch).events))
        assert set(index.copies) == source.held()
        first = msgspec.msgpack.decode(replayed(source.publisher, 0)[1][0])[1][0]
        assert (first[0], first[3], len(first)) == (
            "BlockStored",
            [0, 0, 1, 2, 3, 4],
            11,
        )


def test_a_snapshot_and_what_follows_it() -> None:
    with source_of(topic="kv", snapshot_endpoint=ANY, buffer_steps=0) as source:
        for step in range(12):
            source.compute([step, *range(step, step + 5)])
        until(lambda: source.publisher._last >= 11)
        with connected(zmq.SUB, source.publisher.source.endpoint) as sub:
            # A heartbeat says that the subscription is there.
            payload = sub.recv_multipart()[2]
            assert not msgspec.msgpack.decode(payload, type=KVEventBatch).events
            publisher_id = msgspec.msgpack.decode(payload, type=IdentifiedBatch).publisher_id
            with connected(zmq.REQ, source.publisher.source.snapshot_endpoint) as asking:
                asking.send(b"snapshot")
                number, identity, *chunks = asking.recv_multipart()
            assert identity == publisher_id
            last, index = int.from_bytes(number, "big", signed=True), Index()
            for chunk in chunks:
                index.apply(msgspec.msgpack.decode(chunk, type=KVEventBatch).events)
            assert set(index.copies) == source.held()
            source.compute([7, 7, 7])
            while last < source.publisher._next - 1:
                _, frame, payload = sub.recv_multipart()
                if int.from_bytes(frame, "big") > last:
                    assert int.from_bytes(frame, "big") == last + 1
                    last += 1
                    index.apply(msgspec.msgpack.decode(payload, type=KVEventBatch).events)
            assert set(index.copies) == source.held()


@pytest.mark.parametrize("limit", [{"snapshot_max_blocks": 3}, {"snapshot_max_response_bytes": 100}])
def test_a_snapshot_that_is_too_large_says_so(limit: dict[str, int]) -> None:
    with source_of(snapshot_endpoint=ANY, **limit) as source:
        source.compute(list(range(12)))
        with connected(zmq.REQ, source.publisher.source.snapshot_endpoint) as asking:
            until(lambda: not source.publisher._queue and source.publisher._last >= 0)
            asking.send(b"snapshot")
            number, _ = asking.recv_multipart()
            assert int.from_bytes(number, "big", signed=True) == -2


def test_where_too_many_wait_the_oldest_are_dropped_and_seen_to_be_missing() -> None:
    with source_of(max_queue_size=2, replay_endpoint=ANY, snapshot_endpoint=ANY) as source:
        publisher = source.publisher
        with publisher._lock:  # which the thread waits for
            for step in range(5):
                source.compute([step] * 3)
        until(lambda: publisher._last >= 4)
        assert publisher.num_dropped == 3
        assert replayed(source.publisher, 0)[0][:2] == [3, 4]
        with connected(zmq.REQ, publisher.source.snapshot_endpoint) as asking:
            asking.send(b"snapshot")
            assert int.from_bytes(asking.recv_multipart()[0], "big", signed=True) == -2
            source.manager.reset_prefix_cache()
            publisher.flush()
            number = publisher._next - 1
            until(lambda: publisher._last >= number)
            asking.send(b"snapshot")
            assert int.from_bytes(asking.recv_multipart()[0], "big", signed=True) >= number


def test_a_subscriber_that_does_not_read_costs_nothing() -> None:
    with source_of(topic="kv", hwm=4) as source, connected(zmq.SUB, source.publisher.source.endpoint):
        began = time.thread_time()
        for _ in range(2000):
            source.publisher._events.pending.append(Stored(0, [bytes(32)] * 64, None, np.zeros(128, np.int32)))
            source.publisher.flush()
        assert time.thread_time() - began < 1
        until(lambda: not source.publisher._queue)


def test_nonsense_is_ignored() -> None:
    with source_of(replay_endpoint=ANY, snapshot_endpoint=ANY) as source:
        places = source.publisher.source.replay_endpoint, source.publisher.source.snapshot_endpoint
        for place in places:
            with connected(zmq.DEALER, place) as dealer:
                for frames in ([b"x"], [b"", b"", b""], [b"x", b"y"], [b""]):
                    dealer.send_multipart(frames)
        assert replayed(source.publisher, 2**64 - 1)[0] == []


def test_addresses_by_rank() -> None:
    assert endpoint_of("tcp://*:5557", 0) == "tcp://*:5557"
    assert endpoint_of("tcp://*:5557", 2) == "tcp://*:5559"
    assert endpoint_of("tcp://*:0", 2) == "tcp://*:0"
    assert endpoint_of("inproc://events", 2) == "inproc://events_dp2"
    for wrong in ("ipc:///tmp/events", "tcp://*:65535"):
        with pytest.raises(ConfigError, match="kv_events_config"):
            endpoint_of(wrong, 2)


def test_an_address_in_use_is_an_error_at_the_start() -> None:
    with source_of() as source, pytest.raises(ConfigError, match="Address already in use"):
        opened(zmq.PUB, source.publisher.source.endpoint.replace("127.0.0.1", "*"), 1, bind=True)
