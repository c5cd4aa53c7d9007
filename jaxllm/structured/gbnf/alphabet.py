"""Sets of characters as the bits of integers: those that a grammar never tells apart are one bit."""

from bisect import bisect_left
from collections.abc import Iterable

from jaxllm.structured.gbnf.nodes import LAST, Ranges


class Alphabet:
    """The classes of characters that these sets of a grammar tell apart."""

    def __init__(self, sets: Iterable[Ranges]) -> None:
        self._starts = sorted({0, *(edge for each in sets for first, last in each for edge in (first, last + 1))})

    def bits(self, ranges: Ranges) -> int:
        """The classes in a set that is one of those, or a union of them."""
        found = 0
        for first, last in ranges:
            start, end = bisect_left(self._starts, first), bisect_left(self._starts, min(last, LAST) + 1)
            found |= (1 << end) - (1 << start)
        return found
