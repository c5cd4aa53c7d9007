"""A guess at what engines have cached: the prompts that were sent to them."""

import itertools
from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np

BLOCK = 64
"""Tokens of a prompt that are compared at a time."""
MOST_BLOCKS = 64
"""Blocks of a prompt that are looked at: what lies after them hardly tells prompts apart, and would take long."""
MOST_KNOWN = 1 << 16
"""Blocks that are remembered."""


class PrefixIndex:
    """Which engines were sent prompts with the same beginning. It forgets what was not seen for longest."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, set[int]] = OrderedDict()

    @staticmethod
    def blocks(prompt_token_ids: np.ndarray, salt: str | None) -> list[int]:
        """A number for each beginning of a prompt (int32 [length]) that is whole blocks."""
        data, size = prompt_token_ids.tobytes(), BLOCK * prompt_token_ids.itemsize
        count = min(len(data) // size, MOST_BLOCKS)
        pieces = (data[place * size : (place + 1) * size] for place in range(count))
        return list(itertools.accumulate(pieces, lambda before, piece: hash((before, piece)), initial=hash(salt)))[1:]

    def shared(self, blocks: Sequence[int], engines: Collection[int]) -> dict[int, int]:
        """How many of these blocks each of the engines has seen, from the first one on without a gap."""
        found: dict[int, int] = {}
        left = set(engines)
        for count, block in enumerate(blocks, 1):
            left &= self._seen.get(block, frozenset())
            if not left:
                break
            found.update(dict.fromkeys(left, count))
        return found

    def add(self, blocks: Sequence[int], engine: int) -> None:
        """They were sent to this engine."""
        for block in blocks:
            self._seen.setdefault(block, set()).add(engine)
            self._seen.move_to_end(block)
        while len(self._seen) > MOST_KNOWN:
            self._seen.popitem(last=False)

    def forget(self, engine: int) -> None:
        """This engine's cache is empty."""
        for engines in self._seen.values():
            engines.discard(engine)
