"""A snapshot leads to what the events so far lead to."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.engine.events.mirror import Mirror
from jaxllm.engine.events.wire import CacheGroup, WireFormat
from jaxllm.kv.events import Cleared, Event, Medium, Removed, Stored
from tests.jaxllm.engine.events.consumer import Index, KVEventBatch

WIRE = WireFormat(2, [CacheGroup("full_attention"), CacheGroup("sliding_window", 6), CacheGroup("mamba")])


def digest(path: tuple[int, ...]) -> bytes:
    return bytes([0, *path]).rjust(32, b"\0")


def store(table: int, path: tuple[int, ...], first: int, medium: Medium = "GPU") -> Stored:
    """The blocks of a path through a tree from its `first` one on; each has its number in the path as its tokens."""
    paths = [path[: end + 1] for end in range(first, len(path))]
    tokens = np.repeat(np.array(path[first:], np.int32), 2)
    parent = digest(path[:first]) if first else None
    return Stored(table, [digest(each) for each in paths], parent, tokens, medium=medium)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Event]]:
    """Batches of events as caches emit them: a block is removed where it is, and stored where it is not."""
    held: set[tuple[int, tuple[int, ...]]] = set()
    states: set[tuple[int, ...]] = set()
    copies: set[tuple[Medium, int, tuple[int, ...]]] = set()
    batches: list[list[Event]] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["store", "store", "remove", "remove", "copy", "copy gone", "state", "clear"]))
        if kind == "store":
            path = tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=4)))
            table = draw(st.integers(0, 1))
            known = [(table, path[: end + 1]) in held for end in range(len(path))]
            first = known.index(False) if False in known else len(path)
            if any(known[first:]):
                continue  # rather than several runs
            held |= {(table, path[: end + 1]) for end in range(first, len(path))}
            # The first table is written first, as publishing does.
            batches.append([store(table, path, first)] if first < len(path) else [])
        elif kind == "remove" and held:
            table, path = draw(st.sampled_from(sorted(held)))
            held.discard((table, path))
            batches.append([Removed(table, [digest(path)])])
        elif kind == "copy" and held:
            table, path = draw(st.sampled_from(sorted(held)))
            medium: Medium = draw(st.sampled_from(["CPU", "STORAGE"]))
            if (medium, table, path) not in copies:
                copies.add((medium, table, path))
                batches.append([store(table, path, len(path) - 1, medium)])
        elif kind == "copy gone" and copies:
            medium, table, path = draw(st.sampled_from(sorted(copies)))
            copies.discard((medium, table, path))
            batches.append([Removed(table, [digest(path)], medium)])
        elif kind == "state":
            path = tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)))
            batches.append([Removed(2, [digest(path)]) if path in states else state(path)])
            states ^= {path}
        elif kind == "clear":
            held, states, copies = set(), set(), set()
            batches.append([Cleared()])
    return batches


def state(path: tuple[int, ...]) -> Stored:
    return Stored(2, [digest(path)], None, np.zeros(0, np.int32))


@settings(max_examples=150, deadline=None)
@given(histories())
def test_snapshots_are_what_was_told(batches: list[list[Event]]) -> None:
    mirror, told = Mirror(), Index()
    for events in batches:
        wire = [WIRE.translated(event) for event in events]
        mirror.apply(wire)
        told.apply(decoded(WIRE.encoded(0, wire, 0)))
        late = Index()
        for part in mirror.snapshot():
            late.apply(decoded(WIRE.encoded(0, part, 0)))
        assert late.copies == told.copies
        assert late.media == told.media
        for _, block in late.copies:
            if block in late.tokens:
                assert late.tokens[block] == told.tokens[block]


def test_nothing_stays_known_when_all_is_gone() -> None:
    mirror = Mirror()
    mirror.apply([WIRE.translated(store(0, (1, 2, 1), 0)), WIRE.translated(state((1,)))])
    for path in ((1,), (1, 2), (1, 2, 1)):
        mirror.apply([WIRE.translated(Removed(0, [digest(path)]))])
    assert len(mirror) == 1
    mirror.apply([WIRE.translated(Removed(2, [digest((1,))]))])
    assert (len(mirror), list(mirror.snapshot())) == (0, [])
    assert not mirror._followers


def decoded(payload: bytes) -> list[object]:
    return list(msgspec.msgpack.decode(payload, type=KVEventBatch).events)
