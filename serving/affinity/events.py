"""Events of a prefix cache as they are read: vLLM's contract, of the page "KV Cache Events" in its documentation.

Fields that are not read here are left out; engines may send further ones. Hashes are integers, or whole digests.
"""

from typing import Any

import msgspec

Hash = int | bytes


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Neighbouring blocks can be found from now on."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks cannot be found any more in a medium."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """Nothing can be found any more."""


class _PositionalStored(BlockStored, array_like=True, tag="BlockStored"):
    """As vLLM had it until June 2026."""


class _PositionalRemoved(BlockRemoved, array_like=True, tag="BlockRemoved"):
    """Likewise."""


class _PositionalCleared(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    """Likewise."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(msgspec.Struct, array_like=True, gc=False):
    time: float
    events: list[msgspec.Raw]


_batches = msgspec.msgpack.Decoder(_Batch)
_maps = msgspec.msgpack.Decoder(Event)
_arrays = msgspec.msgpack.Decoder(_PositionalStored | _PositionalRemoved | _PositionalCleared)


def read_batch(payload: bytes) -> list[Event]:
    """The events of a batch. Raises `msgspec.DecodeError` (and its `ValidationError`) for anything else."""
    return [_read(memoryview(event)) for event in _batches.decode(payload).events]


def _read(event: memoryview) -> Event:
    """An array of MessagePack begins with 0x90 to 0x9f, 0xdc or 0xdd."""
    is_array = len(event) > 0 and (event[0] & 0xF0 == 0x90 or event[0] in (0xDC, 0xDD))
    return _arrays.decode(event) if is_array else _maps.decode(event)
