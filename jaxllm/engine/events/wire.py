"""Events as they are published: vLLM's contract of the page "KV Cache Events" in its documentation.

A batch is an array. Each event in it is a map with its kind as `type`, or, as vLLM had it until June 2026, an array
that begins with its kind. Digests become integers: their last 8 bytes, big-endian.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from jaxllm.kv.events import Cleared, Event, PageKeys, Removed, Stored

Format = Literal["map", "array"]


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Neighbouring blocks can be found from now on."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[PageKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks cannot be found any more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Nothing can be found any more."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


class CacheGroup(msgspec.Struct, frozen=True):
    """What the layers of a page table are, by vLLM's names; `window` in tokens, 0 for none."""

    kind: str
    window: int = 0


class WireFormat:
    """Turns events of a cache into what is published."""

    def __init__(self, block_size: int, groups: Sequence[CacheGroup], event_format: Format = "map") -> None:
        """`groups` has each page table, and after them the states if there are any."""
        self._size, self._groups = block_size, groups
        self._positional = event_format == "array"
        self._encoder = msgspec.msgpack.Encoder()

    def translated(self, event: Event) -> WireEvent:
        """The event as it is published."""
        match event:
            case Stored(table, digests, parent, token_ids, adapter, keys, medium):
                group = self._groups[table]
                number, name = adapter or (None, None)
                return BlockStored(
                    [short(digest) for digest in digests],
                    None if parent is None else short(parent),
                    # Where embeddings stand in place of a token, its id is no id.
                    np.maximum(token_ids, 0).tolist(),
                    self._size,
                    number,
                    medium,
                    name,
                    keys,
                    table,
                    group.kind,
                    group.window or None,
                )
            case Removed(table, digests, medium):
                return BlockRemoved([short(digest) for digest in digests], medium, table)
            case Cleared():
                return AllBlocksCleared()

    def encoded(self, time: float, events: Sequence[WireEvent], rank: int, publisher_id: bytes | None = None) -> bytes:
        """A batch of the engine with this rank; `time` is seconds since the epoch."""
        listed: Sequence[Any] = [_values(event) for event in events] if self._positional else events
        batch = (time, listed, rank) if publisher_id is None else (time, listed, rank, publisher_id)
        return self._encoder.encode(batch)


def short(digest: bytes) -> int:
    """A digest as one number of 64 bits."""
    return int.from_bytes(digest[-8:], "big")


def _values(event: WireEvent) -> list[Any]:
    """The kind of an event and its values in order, without those at its end that have their defaults."""
    values = [type(event).__name__, *(getattr(event, name) for name in event.__struct_fields__)]
    least = len(values) - len(event.__struct_defaults__)
    while len(values) > least and values[-1] is None:
        values.pop()
    return values
