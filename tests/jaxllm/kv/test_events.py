"""What is noted of pages: adapters, images and salts."""

import numpy as np
import pytest

from jaxllm.kv.events import Event, KVEvents, Removed, Stored, media_keys
from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import MediaItem, PromptMedia
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from tests.jaxllm.kv.replica import Replica


def request_of(tokens: list[int], salt: str | None = None) -> Request:
    prompt = np.array(tokens, np.int32)
    return Request(request_id="r", prompt_token_ids=prompt, params=SamplingParams(), cache_salt=salt)


def computed(manager: KVManager, request: Request) -> list[Event]:
    """The events of a request that is computed, leaves, and was not there before."""
    replica = Replica(manager)
    found = manager.admit(request, 0)
    assert found is not None
    pages, cached = found
    manager.publish(request, request.prompt_token_ids, pages, cached, len(request.prompt_token_ids))
    manager.release(pages)
    return replica.check()


def stored(events: list[Event]) -> list[Stored]:
    assert all(isinstance(event, Stored) for event in events)
    return [event for event in events if isinstance(event, Stored)]


def test_a_run_of_pages_is_one_event_with_its_parent() -> None:
    manager = KVManager(9, 2)
    (first,) = stored(computed(manager, request_of([1, 2, 3, 4, 5])))
    assert (first.table, first.parent, first.token_ids.tolist(), first.keys) == (0, None, [1, 2, 3, 4], None)
    replica = Replica(manager)
    replica.copies.update((0, digest, "GPU") for digest in first.digests)
    found = manager.admit(longer := request_of([1, 2, 3, 4, 5, 6, 7]), 0)
    assert found is not None
    manager.publish(longer, longer.prompt_token_ids, *found, 7)
    (more,) = stored(replica.check())
    assert (more.parent, more.token_ids.tolist()) == (first.digests[-1], [5, 6])


def test_what_is_evicted_is_removed_for_each_table() -> None:
    manager = KVManager(9, 2, groups=CacheGroups((0, 3), 2, 8))
    replica = Replica(manager)
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]):
        request = request_of(tokens)
        found = manager.admit(request, 0)
        assert found is not None
        manager.publish(request, request.prompt_token_ids, found[0], found[1], 4)
        manager.release(found[0])
    events = replica.check()
    assert {event.table for event in events if isinstance(event, Removed)} == {0, 1}


@pytest.mark.parametrize("start", [0, 3])
def test_pages_name_the_adapter_that_they_were_computed_with(start: int) -> None:
    request = request_of([1, 2, 3, 4, 5, 6])
    request.lora_request, request.adapter_digest = LoRARequest("french", 7, "folder"), bytes(range(32))
    request.adapter_start = start
    events = stored(computed(KVManager(9, 2), request))
    if not start:
        (event,) = events
        assert (event.adapter, event.keys) == ((7, "french"), [("french",)] * 3)
    else:
        # The page in which it starts is the first that has it.
        before, after = events
        assert (before.adapter, before.keys, len(before.digests)) == (None, None, 1)
        assert (after.adapter, after.parent, len(after.digests)) == ((7, "french"), before.digests[-1], 2)


def test_the_text_of_a_salt_goes_nowhere() -> None:
    manager = KVManager(20, 2)
    (first,) = stored(computed(manager, request_of([1, 2, 3, 4], salt="secret")))
    assert first.keys is not None
    assert first.keys[1] is None
    assert "secret" not in repr(first)
    (other,) = stored(computed(KVManager(20, 2), request_of([1, 2, 3, 4], salt="secret")))
    assert other.keys is not None
    assert other.digests == first.digests
    assert other.keys[0] != first.keys[0], "whoever knows no key of the process cannot try texts"


def test_images_are_named_by_digest_and_place() -> None:
    items = (MediaItem(b"\1" * 32, (), 3), MediaItem(b"\2" * 32, (), 1))
    tokens = np.array([5, 9, 9, 9, 5, 9, 5, 5], np.int32)
    media = PromptMedia.of(items, tokens, 9, 2)
    found = [media_keys(media, page, 2) for page in range(4)]
    one, two = "01" * 32, "02" * 32
    assert found == [[(one, 1)], [(one, -1)], [(two, 1)], []]
    request = request_of(tokens.tolist())
    request.media = media
    (event,) = stored(computed(KVManager(9, 2), request))
    assert event.keys == [((one, 1),), ((one, -1),), ((two, 1),), None]


def test_snapshots_of_states_have_a_table_of_their_own() -> None:
    pool, events = SnapshotPool(3, 1), KVEvents(16, num_tables=2)
    pool.events = events
    for digest in (b"a", b"b"):
        slot = pool.take()
        assert slot is not None
        pool.publish(digest, slot)
    kinds = [(type(event), event[0], event[1]) for event in events.take() if event]
    assert kinds == [(Stored, 2, [b"a"]), (Removed, 2, [b"a"]), (Stored, 2, [b"b"])]
