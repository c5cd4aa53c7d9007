"""Optional parts in a row: after each of them all the following may come, and that has to be worked out."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_MOST: Final = 1 << 30


class Measure(NamedTuple):
    """An expression's measure: whether it may be empty, its optional parts in a row if so, and the most inside it."""

    empty: bool = False
    row: int = 0
    longest: int = 0


ATOM: Final = Measure()
"""Something that is not empty."""

OPEN, CLOSE, EITHER, MAYBE, AGAIN, OPEN_MAYBE, CLOSE_MAYBE = ["(", ")", "|", "?", "+", "[", "]"]
"""What expressions consist of besides their parts: groups, alternatives, that what stands before may be left out or may
come again, and groups that may be left out."""

Token = str | Measure


@dataclass
class _Group:
    parts: list[Measure] = field(default_factory=list)
    alternatives: list[Measure] = field(default_factory=list)

    def end_alternative(self) -> None:
        """The parts so far are one alternative."""
        row, longest, empty = 0, 0, True
        for part in self.parts:
            empty = empty and part.empty
            row = min(_MOST, row + part.row) if part.empty else 0
            longest = max(longest, row, part.longest)
        self.alternatives.append(Measure(empty, row if empty else 0, longest))
        self.parts = []

    def measure(self) -> Measure:
        """Measure of the whole group."""
        self.end_alternative()
        return Measure(*(max(values) for values in zip(*self.alternatives, strict=True)))


def measure(tokens: Iterable[Token]) -> Measure:
    """Measure an expression. Brackets that do not match are no reason to fail: they are others' to reject."""
    stack = [_Group()]
    for token in tokens:
        group = stack[-1]
        match token:
            case Measure():
                group.parts.append(token)
            case "(" | "[":
                stack.append(_Group())
            case ")" | "]" if len(stack) > 1:
                whole = stack.pop().measure()
                stack[-1].parts.append(_maybe(whole) if token == CLOSE_MAYBE else whole)
            case "|":
                group.end_alternative()
            case "?" if group.parts:
                group.parts[-1] = _maybe(group.parts[-1])
    while len(stack) > 1:
        whole = stack.pop().measure()
        stack[-1].parts.append(whole)
    return stack[0].measure()


def _maybe(part: Measure) -> Measure:
    row = max(1, part.row)
    return Measure(empty=True, row=row, longest=max(row, part.longest))
