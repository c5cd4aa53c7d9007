"""The limits of one rendering of a template: time of the processor, and text that it makes."""

import time
from typing import Any, Final

from jaxllm.errors import RequestError

SECONDS: Final = 2.0
"""CPU time, in addition to what the input's size allows."""
UNITS: Final = 1 << 24
"""Characters of output, in addition to what the input's size allows."""
UNITS_PER_INPUT: Final = 64
"""A unit is a character that is written, or an iteration. Templates that join a text step by step need many."""
SECONDS_PER_INPUT: Final = 2e-6
LARGEST: Final = 1 << 22
"""Characters of one text, in addition to eight times the input: no template needs more, and copies are not counted in
full.
"""
_CLOCK_UNITS: Final = 8192
"""So many units pass between looks at the clock."""
_ITEM: Final = 8
"""What a value of the input counts for besides its characters."""
_COPIES: Final = 16
"""Copies are short-lived, unless a template keeps them."""


class TemplateLimitError(RequestError):
    """A template has used up its time, or has made too much text."""


class Budget:
    """Counts down. Not for several threads."""

    __slots__ = ("_deadline", "_next", "_seconds", "_used", "has_made", "largest", "units")

    def __init__(self, num_input: int) -> None:
        """`num_input` is the size of what the template is given (`size_of`)."""
        self.units = UNITS + UNITS_PER_INPUT * num_input
        self.largest = LARGEST + 8 * num_input
        self.has_made = False
        """Whether the template has made lists or dictionaries, in which one value may occur many times."""
        self._seconds = SECONDS + SECONDS_PER_INPUT * num_input
        self._deadline = time.thread_time() + self._seconds
        self._used, self._next = 0, _CLOCK_UNITS

    def spend(self, units: int) -> None:
        """Count units. Raises `TemplateLimitError`."""
        self._used += units
        if self._used >= self._next:
            self._check()

    def copied(self, length: int) -> None:
        """Count a text or list that was made of others. Raises `TemplateLimitError` also if it is too long."""
        if length > self.largest:
            raise TemplateLimitError(f"the template creates a string or list longer than {self.largest:,}")
        self.spend(1 + length // _COPIES)

    def _check(self) -> None:
        self._next = self._used + _CLOCK_UNITS
        if self._used > self.units:
            raise TemplateLimitError(
                f"the template writes or iterates over more than {self.units:,} characters or steps"
            )
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(f"the template takes more than {self._seconds:.1f} s of CPU time")


def size_of(value: Any, limit: int | None = None) -> int:
    """Characters in a value, and some for each value inside; beyond `limit`, any number that is larger.

    A value counts as often as it occurs.
    """
    size, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        size += _ITEM
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, dict):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        if limit is not None and size + _ITEM * len(waiting) > limit:
            return limit + 1
    return size
