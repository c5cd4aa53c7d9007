"""The nodes of a grammar in GBNF. Nodes are compared by identity: each is one place of the grammar."""

from dataclasses import dataclass

LAST = 0x10FFFF
"""The last character of Unicode."""
SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]
"""Characters, as ranges from the first to the last; sorted, apart from one another."""


@dataclass(frozen=True, eq=False)
class Chars:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Token:
    """One token, by its text or its id: `<think>`, `<[1000]>`."""

    text: str


@dataclass(frozen=True, eq=False)
class Ref:
    """The definition of the rule of this name."""

    name: str


@dataclass(frozen=True, eq=False)
class Seq:
    """One after the other; nothing at all if there are none."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False)
class Alt:
    """One of them."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False)
class Repeat:
    """Again and again: `least` times or more, at most `most` if that is not None."""

    item: "Node"
    least: int
    most: int | None


Node = Chars | Token | Ref | Seq | Alt | Repeat


def children(node: Node) -> tuple[Node, ...]:
    """The nodes in a node; a reference has none."""
    match node:
        case Seq() | Alt():
            return node.items
        case Repeat():
            return (node.item,)
    return ()


def normal(ranges: list[tuple[int, int]], *, negated: bool = False) -> Ranges:
    """Characters in these ranges, or all others; surrogates are no characters."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, SURROGATES] if negated else ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    if not negated:
        return tuple(part for each in merged for part in _without_surrogates(*each))
    edges = [-1, *(edge for first, last in merged for edge in (first - 1, last)), LAST]
    # Before the first, between each two, after the last.
    gaps = [(edges[0] + 1, edges[1])] + [(edges[i] + 1, edges[i + 1]) for i in range(2, len(edges) - 1, 2)]
    return tuple((first, last) for first, last in gaps if first <= last)


def _without_surrogates(first: int, last: int) -> list[tuple[int, int]]:
    parts = [(first, min(last, SURROGATES[0] - 1)), (max(first, SURROGATES[1] + 1), last)]
    return [(start, end) for start, end in parts if start <= end]
