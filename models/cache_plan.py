"""Where each layer keeps what outlives a step: keys and values in pages, or a state of each request in its slot.

A page holds tokens of `depth` layers. Where layers differ in their windows, the layers with one window are cut into
slices of `depth` layers, and each slice has a page table of its own: so all pages are of one size, come from one pool,
and the slices that need less give theirs back. vLLM's hybrid allocator cuts layers the same way.

Where layers differ in their heads (Gemma 4), each of the `depth` places of a page holds one layer of the widest keys
and values, or several of others: all pages still are of one size. A layer that reads the keys and values of another one
is where that is.

Where far tokens are seen by entries that stand for groups of them, a layer has two places: one for tokens, in a table
with its window, and one for entries, in a table that keeps everything.

Recurrent layers have no pages: those that keep arrays of the same shapes have one array of each for all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from jaxllm.models.errors import ModelError
from jaxllm.models.pattern import segments_of
from jaxllm.models.plan import LayerPlan, StateArray

MOST_TABLES = 16
"""Page tables of one window at most: the host's work grows with them."""

ALIKE = 1.25
"""Numbers of layers that differ by less than this factor are cut into slices of the larger one: filling up the smaller
slice costs less than cutting the larger one in two."""

MOST_PER_PLACE = 64
"""Layers in a place of a page at most; 2 in published models. Small ones made by transformers have 32 where their
full attention keeps the size of heads that is its default."""


@dataclass(frozen=True)
class StateGroup:
    """The state that each of `count` recurrent layers keeps of a request, and the inputs of each of its drafts."""

    arrays: tuple[StateArray, ...]
    count: int
    draft_inputs: tuple[StateArray, ...] = ()


@dataclass(frozen=True)
class EntryPlace:
    """Where a layer keeps entries: as `tables`, `places`, `shares` and `parts` of a `CachePlan` say it of tokens."""

    table: int
    place: int
    share: int
    part: int


@dataclass(frozen=True)
class CachePlan:
    """`windows` has that of each page table, 0 for none, equal ones side by side.

    `tables` and `places` have, for each layer of the model, its page table and its layer of the cache, of `depth`. A
    model without attention has a table, too: it counts tokens, and its pages hold nothing.

    `shares` has how many layers like it are in that place, and `parts` which of them it is, see above.

    `groups` has, for each layer that keeps a state, its number in `states`, else None. There `places` is its layer of
    the group's arrays, and `tables` means nothing.
    """

    windows: tuple[int, ...]
    tables: tuple[int, ...]
    places: tuple[int, ...]
    depth: int
    groups: tuple[int | None, ...]
    states: tuple[StateGroup, ...] = ()
    shares: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    entries: tuple[EntryPlace | None, ...] = ()
    """For each layer the place of its entries, if it has some; empty where none has."""

    @property
    def num_tables(self) -> int:
        """Page tables of a request."""
        return len(self.windows)


@lru_cache(maxsize=64)
def plan_cache(
    layers: tuple[LayerPlan, ...], *, by_window: bool = True, sizes: tuple[int, ...] | None = None
) -> CachePlan:
    """The cache of a model with these layers; if not `by_window`, all keys and values are kept, in one slice.

    `sizes` are those of a token's keys and values in each layer, in any unit; by default they are equal.

    Layers that take the same place of a pattern are neighbours in a slice: a scan over the pattern's repeats then stays
    in one slice, wherever a slice is as long as the pattern is repeated.
    """
    shares = _shares(layers, (1,) * len(layers) if sizes is None else sizes)
    windows, tables, places, parts, depth = _plan_pages(layers, shares, by_window=by_window)
    blocks = [layer.recurrence for layer in layers]
    kept = [None if block is None else (block.states, block.draft_inputs) for block in blocks]
    kinds = list(dict.fromkeys(arrays for arrays in kept if arrays is not None))
    counts = [0] * len(kinds)
    groups = [None if arrays is None else kinds.index(arrays) for arrays in kept]
    for layer, group in enumerate(groups):
        if group is not None:
            places[layer] = counts[group]
            counts[group] += 1
    states = tuple(StateGroup(arrays, count, inputs) for (arrays, inputs), count in zip(kinds, counts, strict=True))
    return CachePlan(
        tuple(windows), tuple(tables), tuple(places), depth, tuple(groups), states, tuple(shares), tuple(parts)
    )


def plan_compressed_cache(
    layers: tuple[LayerPlan, ...], shares: tuple[int, ...], entry_shares: tuple[int, ...], *, by_window: bool
) -> CachePlan:
    """The cache of layers: `shares[i]` layers like layer i fit in a place of a page.

    `entry_shares` is the same for the entries of layers, and 0 for a layer that has none. Entries are planned as if
    they were those of a layer without a window.
    """
    having = [layer for layer, share in enumerate(entry_shares) if share]
    both = (*shares, *(entry_shares[layer] for layer in having))
    whole = math.lcm(*both)
    every = (*layers, *(layers[layer].with_window(0) for layer in having))
    plan = plan_cache(every, by_window=by_window, sizes=tuple(whole // share for share in both))
    count = len(layers)
    own = zip(plan.tables[count:], plan.places[count:], plan.shares[count:], plan.parts[count:], strict=True)
    entries = dict(zip(having, (EntryPlace(*each) for each in own), strict=True))
    return replace(
        plan,
        tables=plan.tables[:count],
        places=plan.places[:count],
        groups=plan.groups[:count],
        shares=plan.shares[:count],
        parts=plan.parts[:count],
        entries=tuple(entries.get(layer) for layer in range(count)) if having else (),
    )


def _shares(layers: Sequence[LayerPlan], sizes: Sequence[int]) -> list[int]:
    """How many layers like each one are in a place of a page. Raises `ModelError` if there were too many."""
    attending = [size for size, layer in zip(sizes, layers, strict=True) if layer.recurrence is None]
    place = math.lcm(*attending)
    shares = [1 if layer.recurrence is not None else place // size for size, layer in zip(sizes, layers, strict=True)]
    if max(shares, default=1) > MOST_PER_PLACE:
        raise ModelError(
            f"keys and values of layers have sizes {sorted(set(attending))}: a page would hold {max(shares)} of the "
            f"smallest layers in one slot, but at most {MOST_PER_PLACE} are supported"
        )
    return shares


def _plan_pages(
    layers: Sequence[LayerPlan], shares: Sequence[int], *, by_window: bool
) -> tuple[list[int], list[int], list[int], list[int], int]:
    """Windows of page tables; the table, the place and the part of it of each layer; and places of a page."""
    tables, places, parts = [0] * len(layers), [0] * len(layers), [0] * len(layers)
    own = [number for number, layer in enumerate(layers) if layer.recurrence is None and layer.attention.source is None]
    windows = sorted({layers[number].attention.window for number in own}) if by_window else []
    if len(windows) < 2:
        members, windows = [own], windows or [0]
    else:
        order = [layer for layer in _pattern_order(layers) if layer in own]
        members = [[layer for layer in order if layers[layer].attention.window == window] for window in windows]
    filled = [_fill(each, shares) for each in members]
    depth = _depth([count for _, count in filled])
    slices: list[int] = []
    for window, (found, count) in zip(windows, filled, strict=True):
        for layer, (place, part) in found.items():
            number, places[layer] = divmod(place, max(depth, 1))
            tables[layer], parts[layer] = len(slices) + number, part
        slices += [window] * max(-(-count // max(depth, 1)), 1)
    for reader, plan in enumerate(layers):
        source = None if plan.recurrence is not None else plan.attention.source
        if source is not None:
            tables[reader], places[reader], parts[reader] = tables[source], places[source], parts[source]
    return slices, tables, places, parts, depth


def _pattern_order(layers: Sequence[LayerPlan]) -> list[int]:
    """Layers' numbers: those that take the same place of a pattern are neighbours."""
    return [layer for each in segments_of(layers) for place in range(each.period) for layer in each.layers(place)]


def _fill(members: Sequence[int], shares: Sequence[int]) -> tuple[dict[int, tuple[int, int]], int]:
    """The place, and the part of it, of each of these layers; and how many places they take."""
    found: dict[int, tuple[int, int]] = {}
    count = 0
    for share, alike in groupby(sorted(members, key=lambda layer: shares[layer]), key=lambda layer: shares[layer]):
        numbers = list(alike)
        found |= {layer: (count + index // share, index % share) for index, layer in enumerate(numbers)}
        count += -(-len(numbers) // share)
    return found, count


def _depth(sizes: Sequence[int]) -> int:
    """Layers of a slice, for groups of so many layers."""
    fewest, most = min(sizes), max(sizes)
    return most if most < ALIKE * fewest else max(fewest, -(-most // MOST_TABLES))
