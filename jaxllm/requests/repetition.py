"""The repetition that ends an output: vLLM's names and meanings."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from jaxllm.requests.checked_names import CheckedNames, repr_of_changes
from jaxllm.requests.value_checks import integer, wrong

MAX_PATTERN: Final = 1024
"""Longest pattern that is looked for: each token is compared with so many before it."""
MAX_COUNT: Final = 2**20

_size = integer(f"an integer from 0 to {MAX_PATTERN}", 0, MAX_PATTERN)
_count = integer(f"an integer from 0 to {MAX_COUNT}", 0, MAX_COUNT)


class _Names(CheckedNames):
    noun: ClassVar[str] = "field of repetition_detection"


class RepetitionDetectionParams(
    msgspec.Struct, metaclass=_Names, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The output ends where its last tokens are one pattern, `min_count` times in a row.

    Checked when made; a wrong value raises `RequestError`.
    """

    max_pattern_size: int = 0
    """Most tokens of the pattern; 0: nothing is looked for."""
    min_pattern_size: int = 0
    """Fewest tokens of the pattern; 0 means 1."""
    min_count: int = 0
    """Times that the pattern stands there, 2 at least."""

    def __post_init__(self) -> None:
        self.max_pattern_size = _size("max_pattern_size", self.max_pattern_size)
        self.min_pattern_size = _size("min_pattern_size", self.min_pattern_size)
        self.min_count = _count("min_count", self.min_count)
        if self.min_pattern_size > self.max_pattern_size:
            expected = f"at most max_pattern_size={self.max_pattern_size}"
            raise wrong("min_pattern_size", self.min_pattern_size, expected)
        if self.max_pattern_size and self.min_count < 2:
            raise wrong("min_count", self.min_count, "at least 2")

    def __repr__(self) -> str:
        return repr_of_changes(self)

    @classmethod
    def of(cls, value: Any) -> "RepetitionDetectionParams":
        """From an object of this class or a mapping of its fields. Raises `RequestError`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise wrong("repetition_detection", value, "a RepetitionDetectionParams or a mapping of its fields")
        made: RepetitionDetectionParams = cls(**value)
        return made
