"""What a cache holds, as its events told, so that those who come late can be told all of it at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from jaxllm.engine.events.wire import AllBlocksCleared, BlockRemoved, BlockStored, WireEvent

CHUNK_BLOCKS = 1024
"""Blocks in one part of a snapshot."""


Place = tuple[int, str | None]
"""A group and a medium."""


@dataclass(slots=True)
class _Block:
    """What was told of a block, and how many copies each group has in each medium."""

    told: BlockStored
    places: Counter[Place] = field(default_factory=Counter)


class Mirror:
    """Blocks by their hash. One that is gone stays known while another goes on from it."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._followers: Counter[int] = Counter()  # of each hash, the known blocks that go on from it
        self._states: Counter[tuple[int, Place]] = Counter()  # hashes and places of snapshots of states
        self._state_told: BlockStored | None = None
        self.is_whole = True
        """Whether it has heard everything since the cache was empty."""

    def __len__(self) -> int:
        """Blocks that are known."""
        return len(self._blocks) + len(self._states)

    def apply(self, events: Sequence[WireEvent]) -> None:
        """Hear of events, in order."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for digest in event.block_hashes:
                        self._remove(digest, _place(event))
                case AllBlocksCleared():
                    self._blocks.clear()
                    self._followers.clear()
                    self._states.clear()
                    self.is_whole = True

    def _store(self, event: BlockStored) -> None:
        place = _place(event)
        if not event.token_ids:
            self._state_told = event
            self._states.update((digest, place) for digest in event.block_hashes)
            return
        parent = event.parent_block_hash
        for number, digest in enumerate(event.block_hashes):
            block = self._blocks.get(digest)
            if block is None:
                block = self._blocks[digest] = _Block(_part(event, number, parent))
                if parent is not None:
                    self._followers[parent] += 1
            block.places[place] += 1
            parent = digest

    def _remove(self, digest: int, place: Place) -> None:
        if (digest, place) in self._states:
            del self._states[digest, place]
            return
        block = self._blocks.get(digest)
        if block is None:
            return
        block.places[place] -= 1
        if block.places[place] <= 0:
            del block.places[place]
        while block is not None and not block.places and not self._followers[digest]:
            del self._blocks[digest], self._followers[digest]
            parent = block.told.parent_block_hash
            if parent is None:
                return
            self._followers[parent] -= 1
            digest, block = parent, self._blocks.get(parent)

    def snapshot(self) -> Iterator[list[WireEvent]]:
        """Events that lead an empty cache to this one, in parts; every block follows the one that it goes on from."""
        part: list[WireEvent] = []
        absent: list[int] = []
        for block, digest in self._in_order():
            copies = list(block.places.elements())
            if not copies:
                absent.append(digest)
            places = copies or [_place(block.told)]
            part += [replace(block.told, group_idx=group, medium=medium) for group, medium in places]
            if len(part) >= CHUNK_BLOCKS:
                yield part
                part = []
        for digest in absent:
            told = self._blocks[digest].told
            part.append(BlockRemoved([digest], told.medium, told.group_idx or 0))
        for digest, (group, medium) in self._states.elements():
            assert self._state_told is not None
            part.append(replace(self._state_told, block_hashes=[digest], group_idx=group, medium=medium))
        if part:
            yield part

    def _in_order(self) -> Iterator[tuple[_Block, int]]:
        done: set[int] = set()
        for digest in self._blocks:
            chain = []
            current: int | None = digest
            while current is not None and current not in done and current in self._blocks:
                done.add(current)
                chain.append(current)
                current = self._blocks[current].told.parent_block_hash
            for each in reversed(chain):
                yield self._blocks[each], each


def _place(event: BlockStored | BlockRemoved) -> Place:
    return event.group_idx or 0, event.medium


def _part(event: BlockStored, number: int, parent: int | None) -> BlockStored:
    """What an event tells of one of its blocks."""
    size = event.block_size
    keys = None if event.extra_keys is None else event.extra_keys[number]
    return replace(
        event,
        block_hashes=[event.block_hashes[number]],
        parent_block_hash=parent,
        token_ids=event.token_ids[number * size : (number + 1) * size],
        extra_keys=None if keys is None else [keys],
    )
