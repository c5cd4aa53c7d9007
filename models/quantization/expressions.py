"""Regular expressions that a stranger wrote: matched in time that their length and the text's bound.

Python's matcher tries one way after another, so an expression of twenty characters such as `(a+)+b` can take years.
Here all places that a match may have reached are followed at once, as bits of one number. There are no
back-references, and nothing looks back.
"""

import re
from collections.abc import Callable, Mapping, Sequence

# How Python reads an expression, which has this name since 3.11: a second parser would read some of them otherwise.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NoReturn

from jaxllm.models.errors import ModelError

MAX_LENGTH = 4096
"""Characters of an expression."""
MAX_STEPS = 10_000
"""Maximum steps of one match; those of checkpoints need less than a hundred."""

Node = tuple[Any, Any]
"""The parse of a part by Python: its kind, and what belongs to it."""
_UNICODE = 32
_LINE_END = "\n"


class Expression:
    """One expression, for the beginnings of short texts."""

    def __init__(self, text: str) -> None:
        """Raises `ModelError`, which has the expression, where it is none, or one of those that are not read."""
        self.text = text
        if len(text) > MAX_LENGTH:
            self._refuse(f"has {len(text)} characters; at most {MAX_LENGTH} are supported")
        try:
            tree = _parser.parse(text)
        except (re.error, RecursionError, OverflowError) as problem:
            self._refuse(f"is not a regular expression ({problem})")
        if tree.state.flags & ~_UNICODE:
            self._refuse("has flags, which are not supported")
        self._nodes: Sequence[Node] = tree.data
        try:
            self._check(self._nodes)
        except RecursionError:
            self._refuse("is nested too deeply")
        self._literals = _literals(self._nodes)

    def begins(self, text: str) -> bool:
        """Whether the text begins like that. Raises `ModelError` where that takes too many steps."""
        return self.ends(text) != 0

    def ends(self, text: str) -> int:
        """Where that beginning may end, a bit for each number of characters. Raises like `begins`."""
        if not all(literal in text for literal in self._literals):
            return 0
        try:
            return _Match(text).after(self._nodes, 1)
        except (_TooLongError, RecursionError):
            self._refuse(f"takes too long to match {text!r}: use fewer nested repetitions")

    def _check(self, nodes: Sequence[Node]) -> None:
        """Raise `ModelError` for parts that are not followed here."""
        for kind, of in nodes:
            if kind not in _STEPS or (kind is op.SUBPATTERN and (of[1] or of[2])):
                self._refuse(f"has an unsupported part ({str(kind).lower()}, or flags)")
            if kind in (op.ASSERT, op.ASSERT_NOT) and of[0] != 1:
                self._refuse("has a lookbehind, which is not supported")
            if kind is op.AT and of not in _PLACES:
                self._refuse(f"has an unsupported part ({str(of).lower()})")
            for inner in _inner(kind, of):
                self._check(inner)

    def _refuse(self, problem: str) -> NoReturn:
        raise ModelError(f"config.json: {self.text[:200]!r} {problem}")


def _literals(nodes: Sequence[Node]) -> list[str]:
    """Texts that every match contains: most texts are told apart by it alone."""
    runs = [""]
    for kind, of in nodes:
        if kind is op.LITERAL:
            runs[-1] += chr(of)
        elif runs[-1]:
            runs.append("")
    return [run for run in runs if run]


class _TooLongError(Exception):
    """A match has taken too many steps."""


def _inner(kind: Any, of: Any) -> list[Sequence[Node]]:
    """Parts of a part."""
    if kind is op.BRANCH:
        return [each.data for each in of[1]]
    if kind in (op.SUBPATTERN, op.ASSERT, op.ASSERT_NOT, op.MAX_REPEAT, op.MIN_REPEAT):
        return [of[-1].data]
    return []


class _Match:
    """A text, whose place `i` is bit `i`: before its character `i`, or at its end."""

    def __init__(self, text: str) -> None:
        self._text, self._left = text, MAX_STEPS
        self._end = 1 << len(text)
        self._places: dict[str, int] = {}
        for place, character in enumerate(text):
            self._places[character] = self._places.get(character, 0) | 1 << place

    def after(self, nodes: Sequence[Node], at: int) -> int:
        """The places after the nodes, begun at any of the places `at`."""
        for kind, of in nodes:
            self._left -= 1
            if self._left < 0:
                raise _TooLongError
            if not at:
                return 0
            at = _STEPS[kind](self, of, at)
        return at

    def literal(self, of: int, at: int) -> int:
        return (at & self._places.get(chr(of), 0)) << 1

    def other(self, of: int, at: int) -> int:
        return (at & ~self._places.get(chr(of), 0) & self._end - 1) << 1

    def any_(self, of: None, at: int) -> int:
        return self.other(ord(_LINE_END), at)

    def in_(self, of: Sequence[Node], at: int) -> int:
        self._left -= len(of) // 8  # Each character is compared with each part of the set.
        found = 0
        for character, places in self._places.items():
            if at & places and _has(of, character):
                found |= places
        return (at & found) << 1

    def branch(self, of: tuple[None, Sequence[Any]], at: int) -> int:
        found = 0
        for branch in of[1]:
            found |= self.after(branch.data, at)
        return found

    def group(self, of: tuple[Any, ...], at: int) -> int:
        return self.after(of[-1].data, at)

    def repeat(self, of: tuple[int, int, Any], at: int) -> int:
        least, most, inner = of
        # A repeat moves on, or stays: after as many as there are characters, twice, nothing changes any more.
        bound = 2 * len(self._text) + 2
        for _ in range(min(int(least), bound)):
            at = self.after(inner.data, at)
        found = new = at
        for _ in range(min(int(most) - int(least), bound)):
            new = self.after(inner.data, new) & ~found
            if not new:
                break
            found |= new
        return found

    def ahead(self, of: tuple[int, Any], at: int) -> int:
        """The positions before `at` where the nodes begin."""
        found = 0
        while at:
            place = at & -at
            at ^= place
            if self.after(of[1].data, place):
                found |= place
        return found

    def not_ahead(self, of: tuple[int, Any], at: int) -> int:
        return at & ~self.ahead(of, at)

    def at(self, of: Any, at: int) -> int:
        return at & _PLACES[of](self)

    def first(self) -> int:
        return 1

    def last(self) -> int:
        return self._end

    def last_line(self) -> int:
        return self._end | (self._end >> 1 if self._text.endswith(_LINE_END) else 0)

    def edges(self) -> int:
        """Where a word begins or ends."""
        words = 0
        for character, places in self._places.items():
            words |= places if _is_word(character) else 0
        return words ^ words << 1

    def no_edges(self) -> int:
        return ~self.edges() & (self._end << 1) - 1


def _has(kinds: Sequence[Node], character: str) -> bool:
    """Whether a set has a character."""
    code, negated = ord(character), kinds[0][0] is op.NEGATE
    for kind, of in kinds:
        if kind is op.LITERAL:
            found = code == of
        elif kind is op.RANGE:
            found = of[0] <= code <= of[1]
        else:
            found = kind is op.CATEGORY and _CATEGORIES[of](character)
        if found:
            return not negated
    return negated


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: Mapping[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    op.CATEGORY_WORD: _is_word,
    op.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}


_STEPS: Mapping[Any, Callable[[_Match, Any, int], int]] = {
    op.LITERAL: _Match.literal,
    op.NOT_LITERAL: _Match.other,
    op.ANY: _Match.any_,
    op.IN: _Match.in_,
    op.BRANCH: _Match.branch,
    op.SUBPATTERN: _Match.group,
    op.MAX_REPEAT: _Match.repeat,
    op.MIN_REPEAT: _Match.repeat,
    op.ASSERT: _Match.ahead,
    op.ASSERT_NOT: _Match.not_ahead,
    op.AT: _Match.at,
}
_PLACES: Mapping[Any, Callable[[_Match], int]] = {
    op.AT_BEGINNING: _Match.first,
    op.AT_BEGINNING_STRING: _Match.first,
    op.AT_END: _Match.last_line,
    op.AT_END_STRING: _Match.last,
    op.AT_BOUNDARY: _Match.edges,
    op.AT_NON_BOUNDARY: _Match.no_edges,
}
