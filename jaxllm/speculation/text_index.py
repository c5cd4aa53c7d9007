"""Where the last tokens of a text were before, from an index of chains: places after tokens of one hash.

A chain is followed from its last place on, and tokens are compared at each: an index may have places that are not right
any more. Lengths and places are int32; `tokens` [L] are a text, `links` [L] the place before each in its chain, and
`chains` [HEADS] the last place of each chain, -1 where it is empty.
"""

from typing import Any

import numpy as np

from jaxllm.speculation.compiled import compiled

HEADS = 4096
"""Chains of a text."""

MOST_PLACES = 64
"""Places of a chain that are looked at, the last ones."""


@compiled
def chain_of(tokens: Any, end: int, count: int) -> int:
    """The chain of a place: a hash of the `count` tokens before it."""
    value = np.uint64(0)
    for index in range(end - count, end):
        value = (value ^ np.uint64(tokens[index])) * np.uint64(0x9E3779B97F4A7C15)
    return int(value >> np.uint64(52))


@compiled
def longest_match(
    source: Any, size: int, chains: Any, links: Any, tokens: Any, length: int, min_tokens: int, max_tokens: int
) -> Any:
    """The place in `source` [size] after most of the last of `tokens` [length], and how many; -1 and 0 for none."""
    found, longest = -1, min_tokens - 1
    place = chains[chain_of(tokens, length, min_tokens)]
    for _ in range(MOST_PLACES):
        if place < 0 or longest >= max_tokens:
            break
        same, most = 0, min(max_tokens, place, length)
        while same < most and source[place - 1 - same] == tokens[length - 1 - same]:
            same += 1
        if same > longest and place < size:
            found, longest = place, same
        place = links[place]
    return (found, longest) if found >= 0 else (-1, 0)


@compiled
def extend_and_look_up(
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
    matched: Any,
) -> int:
    """Extend the index of each slot's text, and write what followed its last tokens; how many drafts that are."""
    total = 0
    for row in range(len(slots)):
        slot = slots[row]
        tokens, chains, links, length = token_ids[slot], heads[slot], before[slot], lengths[slot]
        # The index has each place after `min_tokens` tokens but for the last, which is where the text ends.
        for place in range(max(indexed[slot], min_tokens), length):
            chain = chain_of(tokens, place, min_tokens)
            links[place] = chains[chain]
            chains[chain] = place
        indexed[slot] = max(indexed[slot], length)
        if length < min_tokens:
            continue
        found, matched[row] = longest_match(tokens, length, chains, links, tokens, length, min_tokens, max_tokens)
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
def append(source: Any, chains: Any, links: Any, begin: int, tokens: Any, min_tokens: int) -> int:
    """Write `tokens` [n] to a ring from `begin` on, with -1 after them, and index them; where the next ones begin."""
    size = len(source)
    if begin + len(tokens) + 1 > size:
        begin = 0
    for index in range(len(tokens)):
        source[begin + index] = tokens[index]
    end = begin + len(tokens)
    source[end] = -1
    for place in range(begin + min_tokens, end):
        chain = chain_of(source, place, min_tokens)
        links[place] = chains[chain]
        chains[chain] = place
    return int(end + 1)
