"""What routers do with the events: vLLM's documented classes, and counts of copies.

Written from the field tables of vLLM's page "KV Cache Events" of September 2026.
"""

from collections import Counter
from typing import Any

import msgspec

Hash = int | bytes


class BlockStored(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class PositionalStored(BlockStored, array_like=True, tag="BlockStored"):
    """As it was until June 2026."""


class PositionalRemoved(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class PositionalCleared(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class IdentifiedBatch(KVEventBatch, array_like=True):
    publisher_id: bytes | None = None


class PositionalBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[PositionalStored | PositionalRemoved | PositionalCleared]
    data_parallel_rank: int | None = None


class Index:
    """Copies of blocks by group and hash, as well by medium, and the tokens that lead to each hash."""

    def __init__(self) -> None:
        self.copies: Counter[tuple[int | None, Hash]] = Counter()
        self.media: Counter[tuple[int | None, Hash, str | None]] = Counter()
        self.tokens: dict[Hash, list[int]] = {}

    def apply(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    parent = event.parent_block_hash
                    for number, block in enumerate(event.block_hashes):
                        self.copies[event.group_idx, block] += 1
                        self.media[event.group_idx, block, event.medium] += 1
                        own = event.token_ids[number * event.block_size : (number + 1) * event.block_size]
                        if own:
                            before = [] if parent is None else self.tokens[parent]
                            self.tokens[block] = [*before, *own]
                        parent = block
                case BlockRemoved():
                    for block in event.block_hashes:
                        self.copies[event.group_idx, block] -= 1
                        self.media[event.group_idx, block, event.medium] -= 1
                case AllBlocksCleared():
                    self.copies.clear()
                    self.media.clear()
        self.copies, self.media = +self.copies, +self.media
