"""The parts of a reply, as they come, and the whole that they make."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of the function `name` begins; calls count from 0 by `index`."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the arguments of call `index`, which joined are JSON text (if the model wrote JSON)."""

    index: int
    arguments: str


ReplyPart: TypeAlias = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function; `arguments` is JSON text (if the model wrote JSON)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; None stands for text that did not come."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[FunctionCall] = field(default_factory=list)


class ReplyParser(Protocol):
    """Tells the parts of one reply from each other while its text comes.

    However the text is cut into pieces, the parts fold to the same `Reply`.
    """

    def push(self, text: str) -> list[ReplyPart]:
        """Take more text; returns the parts that are certain now."""

    def finish(self) -> list[ReplyPart]:
        """The text is over; returns the parts that were held back."""


class Fold:
    """Puts parts together."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[ToolCallStart, list[str]]] = []

    def add(self, parts: Iterable[ReplyPart]) -> None:
        """Take more parts, in order."""
        for part in parts:
            match part:
                case ContentDelta(text):
                    self._content.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallStart():
                    assert part.index == len(self._calls)
                    self._calls.append((part, []))
                case ToolCallArguments(index, arguments):
                    self._calls[index][1].append(arguments)

    @property
    def reply(self) -> Reply:
        """The reply that the parts so far make."""
        return Reply(
            content="".join(self._content) if self._content else None,
            reasoning="".join(self._reasoning) if self._reasoning else None,
            tool_calls=[FunctionCall(start.id, start.name, "".join(pieces)) for start, pieces in self._calls],
        )


def fold(parts: Iterable[ReplyPart]) -> Reply:
    """The reply that these parts make together."""
    whole = Fold()
    whole.add(parts)
    return whole.reply


def read_whole(parser: ReplyParser, text: str) -> Reply:
    """The reply, given all of its text."""
    return fold([*parser.push(text), *parser.finish()])


class PlainParser:
    """The parser of models and requests without reasoning and tools: all text is content."""

    def push(self, text: str) -> list[ReplyPart]:
        """The text is content."""
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[ReplyPart]:
        """Nothing is ever held back."""
        return []
