"""The parts of regular expressions."""

import re
from collections.abc import Iterator
from typing import Final

from jaxllm.structured.complexity.sequences import AGAIN, ATOM, CLOSE, EITHER, MAYBE, OPEN, Measure, Token, measure

_PARTS: Final = re.compile(
    r"""
      \\(?:[pPx]\{[^}]*\}|.)                                               # one character, written in another way
    | \[\^?\]?(?:\\.|\[(?:\\.|[^\]\\])*\]|[^\]\\\[])*\]                    # one of several characters
    | (?P<open>\((?:\?(?:P?<\w*>|[a-zA-Z-]*:?))?)
    | (?P<close>\))
    | (?P<either>\|)
    | (?P<maybe>(?:[?*]|\{0*(?:,\d*)?\}|\{0+,\d*\})\??)
    | (?P<again>(?:\+|\{\d+(?:,\d*)?\})\??)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_TOKENS: Final = {"open": OPEN, "close": CLOSE, "either": EITHER, "maybe": MAYBE, "again": AGAIN}


def tokens(regex: str) -> Iterator[Token]:
    """The parts of an expression in the syntax of Rust's `regex`, nearly."""
    for part in _PARTS.finditer(regex):
        yield ATOM if part.lastgroup is None else _TOKENS[part.lastgroup]


def measure_regex(regex: str) -> Measure:
    """The optional parts in it."""
    return measure(tokens(regex))
