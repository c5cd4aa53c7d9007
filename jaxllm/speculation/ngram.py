"""Prompt lookup: what followed the last tokens of a request when they were there before.

After Saxena, Prompt Lookup Decoding (2023). The longest sequence counts, of `max_tokens` to `min_tokens` last tokens,
and of its places the last one: a text repeats what it has just said rather than what it said first.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.compiled import compiled

Int32Array = npt.NDArray[np.int32]

HEADS = 4096
"""Chains of a slot: places whose last tokens have one hash are in one chain."""

MOST_PLACES = 64
"""Places of a chain that are looked at, the last ones."""


class NgramDrafter:
    """Looks in each request's own prompt and output.

    It keeps an index of each slot, of 4 bytes for each token and 16 KiB, which it extends by the tokens that are new:
    what a step costs does not depend on how long the texts are.
    """

    def __init__(self, num_slots: int, max_model_len: int, min_tokens: int, max_tokens: int) -> None:
        self._min_tokens, self._max_tokens = min_tokens, max_tokens
        self._heads: Int32Array = np.full((num_slots, HEADS), -1, np.int32)
        self._before: Int32Array = np.zeros((num_slots, max_model_len), np.int32)
        self._indexed: Int32Array = np.zeros(num_slots, np.int32)
        self._generations: npt.NDArray[np.int64] = np.full(num_slots, -1, np.int64)
        # Compile now, which takes a second, and not in a step.
        self.propose(RequestTable(1, 1, 1), np.zeros(1, np.int32), np.zeros(1, np.int32))
        self._generations[:] = -1

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """See `Drafter.propose`."""
        changed = slots[self._generations[slots] != table.generation[slots]]
        if len(changed):
            self._heads[changed] = -1
            self._indexed[changed] = 0
            self._generations[changed] = table.generation[changed]
        counts = np.zeros(len(slots), np.int32)
        drafts = np.zeros(int(limits.sum()), np.int32)
        lengths = table.num_tokens
        total = _look_up(
            table.token_ids, lengths, slots, limits, self._heads, self._before, self._indexed,
            self._min_tokens, self._max_tokens, counts, drafts,
        )  # fmt: skip
        return counts, drafts[:total]


@compiled
def _look_up(
    token_ids: Any,
    lengths: Any,
    slots: Any,
    limits: Any,
    heads: Any,
    before: Any,
    indexed: Any,
    min_tokens: int,
    max_tokens: int,
    counts: Any,
    drafts: Any,
) -> int:
    """Extend the index of each slot, and write what it finds; how many drafts that are."""
    total = 0
    for row in range(len(slots)):
        slot = slots[row]
        tokens, chains, links, length = token_ids[slot], heads[slot], before[slot], lengths[slot]
        # The index has each place after `min_tokens` tokens but for the last, which is where the text ends.
        for place in range(max(indexed[slot], min_tokens), length):
            chain = _chain(tokens, place, min_tokens)
            links[place] = chains[chain]
            chains[chain] = place
        indexed[slot] = max(indexed[slot], length)
        if length < min_tokens:
            continue
        found, longest = -1, min_tokens - 1
        place = chains[_chain(tokens, length, min_tokens)]
        for _ in range(MOST_PLACES):
            if place < 0 or longest >= max_tokens:
                break
            same = 0
            while same < max_tokens and same < place and tokens[place - 1 - same] == tokens[length - 1 - same]:
                same += 1
            if same > longest:
                found, longest = place, same
            place = links[place]
        if found < 0:
            continue
        counts[row] = limits[row]
        for index in range(limits[row]):
            source = found + index
            # Where the text ends, it goes on with the drafts: it repeats itself.
            drafts[total + index] = tokens[source] if source < length else drafts[total + source - length]
        total += limits[row]
    return total


@compiled
def _chain(tokens: Any, end: int, count: int) -> int:
    """The chain of a place: a hash of the tokens before it."""
    value = np.uint64(0)
    for index in range(end - count, end):
        value = (value ^ np.uint64(tokens[index])) * np.uint64(0x9E3779B97F4A7C15)
    return int(value >> np.uint64(52))
