"""What one engine has cached, as its events tell."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxllm.serving.affinity.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash

MOST_BLOCKS = 1 << 18
"""Blocks of an engine that are remembered, in each of its page tables; the oldest are forgotten beyond it."""
MOST_TOKENS = 1 << 14
"""Tokens of a prompt that are looked at: hashing so many takes less than a millisecond."""
EXPECTED_SECONDS = 10.0
"""How long a prompt that was sent counts as cached before the engine tells of it: unless it was aborted, it will."""
_ROOT = 0


def block_keys(token_ids: np.ndarray, size: int, adapter: str | None = None) -> list[int]:
    """A number for each beginning of a prompt (int32 [length]) that is whole blocks of `size` tokens."""
    data, width = token_ids[:MOST_TOKENS].tobytes(), size * token_ids.itemsize
    extra = None if adapter is None else repr([adapter])
    keys, before = [], _ROOT
    for begin in range(0, len(data) - width + 1, width):
        before = hash((before, extra, data[begin : begin + width]))
        keys.append(before)
    return keys


class _Table:
    """Copies of blocks in one page table, and how many of a prefix's blocks its layers see."""

    __slots__ = ("copies", "is_states", "window")

    def __init__(self) -> None:
        self.copies: dict[Hash, int] = {}
        self.window: int | None = None
        """In tokens; None: the layers see everything."""
        self.is_states = False
        """Whether these are snapshots of recurrent states: one stands for all before it."""

    def ends(self, hashes: Sequence[Hash], size: int) -> np.ndarray:
        """Whether a hit can end after each of these blocks: bool [blocks]."""
        there = np.fromiter((each in self.copies for each in hashes), bool, len(hashes))
        if self.is_states:
            return there
        # How many blocks without a gap lead up to each place.
        places = np.arange(1, len(hashes) + 1)
        run = places - np.maximum.accumulate(np.where(there, 0, places))
        # The last window: the token after the prefix sees `window - 1` tokens of it.
        seen = places if self.window is None else np.minimum(places, max(1, -(-(self.window - 1) // size)))
        return run >= seen


class CachedBlocks:
    """The blocks that an engine has stored and not removed, by the tokens that lead to them. Its memory is bounded.

    Engines choose their hashes as they like: blocks are found by another chain over their tokens and extra keys,
    from which each event's `parent_block_hash` and `token_ids` lead on. A hit needs, of every page table, what its
    layers see of the prefix.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.block_size = 0
        """Tokens in a block; 0 until the engine has told."""
        self.is_live = False
        """Whether its events are being read: otherwise nothing is known of it."""
        self._clock = clock
        self._keys: OrderedDict[Hash, int] = OrderedDict()
        self._hashes: dict[int, Hash] = {}
        self._tables: dict[int, _Table] = {}
        self._expected: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        """Blocks that are cached in the table that has most of them."""
        return max((len(table.copies) for table in self._tables.values()), default=0)

    def clear(self) -> None:
        """The cache is empty, or what is in it is not known."""
        for known in (self._keys, self._hashes, self._tables, self._expected):
            known.clear()

    def apply(self, events: Iterable[Event]) -> None:
        """Events in their order."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.clear()

    def _store(self, event: BlockStored) -> None:
        table = self._tables.setdefault(event.group_idx or 0, _Table())
        table.window, table.is_states = event.kv_cache_spec_sliding_window, event.kv_cache_spec_kind == "mamba"
        size, data = event.block_size, np.array(event.token_ids, np.int32).tobytes()
        if size > 0 and data:
            self.block_size = size
        parent = event.parent_block_hash
        before = _ROOT if parent is None else self._keys.get(parent)
        for number, block in enumerate(event.block_hashes):
            table.copies[block] = table.copies.get(block, 0) + 1
            own = data[4 * number * size : 4 * (number + 1) * size]
            if len(own) == 4 * size and before is not None:
                keys = event.extra_keys
                extra = None if keys is None or number >= len(keys) or keys[number] is None else repr(keys[number])
                before = hash((before, extra, own))
                self._place(block, before)
            elif own:
                # It goes on from a block that was never heard of.
                before = None
        while len(table.copies) > MOST_BLOCKS:
            del table.copies[next(iter(table.copies))]

    def _place(self, block: Hash, key: int) -> None:
        self._expected.pop(key, None)
        self._keys[block] = key
        self._keys.move_to_end(block)
        self._hashes[key] = block
        while len(self._keys) > MOST_BLOCKS:
            oldest, gone = self._keys.popitem(last=False)
            if self._hashes.get(gone) == oldest:
                del self._hashes[gone]

    def _remove(self, event: BlockRemoved) -> None:
        table = self._tables.setdefault(event.group_idx or 0, _Table())
        for block in event.block_hashes:
            left = table.copies.get(block, 0) - 1
            if left > 0:
                table.copies[block] = left
            else:
                table.copies.pop(block, None)

    def expect(self, token_ids: np.ndarray, adapter: str | None = None) -> None:
        """A prompt (int32 [length]) was sent to the engine, which will tell of it when it is computed."""
        if not self.block_size:
            return
        until = self._clock() + EXPECTED_SECONDS
        for key in block_keys(token_ids, self.block_size, adapter):
            block = self._hashes.get(key)
            if block is None or not any(block in table.copies for table in self._tables.values()):
                self._expected[key] = until
                self._expected.move_to_end(key)
        while len(self._expected) > MOST_BLOCKS:
            self._expected.popitem(last=False)

    def matched(self, token_ids: np.ndarray, adapter: str | None = None) -> int:
        """Tokens at the beginning of a prompt (int32 [length]) that are cached, or about to be."""
        if not self.block_size:
            return 0
        keys = block_keys(token_ids, self.block_size, adapter)
        hashes: list[Hash] = []
        for key in keys:
            found = self._hashes.get(key)
            if found is None:
                break
            hashes.append(found)
        count = self._longest(hashes)
        now = self._clock()
        while count < len(keys) and self._expected.get(keys[count], 0.0) > now:
            count += 1
        return count * self.block_size

    def _longest(self, hashes: Sequence[Hash]) -> int:
        """Blocks of the longest hit."""
        if not hashes or not self._tables:
            return 0
        ends = [table.ends(hashes, self.block_size) for table in self._tables.values()]
        possible = np.flatnonzero(np.logical_and.reduce(ends))
        return int(possible[-1]) + 1 if len(possible) else 0
