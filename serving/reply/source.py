"""Text that comes in pieces, read as if it were all there.

A format is a generator that reads from a `Source`: it yields parts of the reply, and None where it cannot go on before
more text has come. Every method here decides only what no further text can change, or what the end of the text has
settled; so what a format yields does not depend on how its text was cut, and reading a whole text is the same as
reading one long piece.
"""

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeAlias, TypeVar

from jaxllm.serving.reply.parts import ContentDelta, ReasoningDelta, ReplyPart, ToolCallArguments

T = TypeVar("T")
Parsing: TypeAlias = Generator[ReplyPart | None, None, T]
"""Reads from a source: yields parts, and None to wait for more text; returns a T."""

SPACE = " \t\r\n"
MOST_TRIMMED = 1024
"""Characters that are held back at most for being trimmed: some models go on with spaces for ever."""

MOST_REREAD = 2**20
"""Characters that are read in vain at most: by far more than any reply has that is not made for it."""


class Source:
    """The text of one reply: what has come of it, and how far it was read.

    A reader may go back to an `at` it has remembered, until `commit` forgets what was read.
    """

    __slots__ = ("at", "dropped", "ended", "held", "reread", "text", "tokens")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.dropped: tuple[str, ...] = ()
        """Markup around the answer that is no part of it."""
        self.tokens: tuple[str, ...] = ()
        """Texts with a meaning that longer markers are made of."""
        self.held = False
        """Whether nothing may be forgotten, since a reader tries what comes."""
        self.reread = 0
        """Characters that were read in vain, to be read again."""

    def commit(self) -> None:
        """Forget what was read, when it is so much that the copy of the rest costs no more than reading it did."""
        if self.at * 2 >= len(self.text) and not self.held:
            self.text, self.at = self.text[self.at :], 0

    def back(self, start: int) -> None:
        """Go back to where a call began that turned out to be none."""
        self.reread += self.at - start
        self.at = start

    @property
    def tired(self) -> bool:
        """Whether so much was read in vain that no further calls should be looked for.

        Text that begins calls again and again within each other would otherwise take time by the square of its length.
        """
        return self.reread > MOST_REREAD

    def more(self) -> Parsing[bool]:
        """Wait for more text; False: there is no more."""
        known = len(self.text)
        while len(self.text) == known and not self.ended:
            yield None
        return len(self.text) > known

    def peek(self) -> Parsing[str]:
        """The next character, empty at the end."""
        if self.at == len(self.text):
            yield from self.more()
        return self.text[self.at : self.at + 1]

    def skip(self, characters: str = SPACE) -> Parsing[str]:
        """Read all of these characters that come next; the first that is none of them has come then."""
        start = self.at
        while (next_one := (yield from self.peek())) and next_one in characters:
            self.at += 1
        return self.text[start : self.at]

    def match(self, *markers: str) -> Parsing[str | None]:
        """Read one of these texts, if one comes next: the longest."""
        most = max(map(len, markers), default=0)
        while True:
            rest = self.text[self.at : self.at + most]
            longer = [marker for marker in markers if len(marker) > len(rest) and marker.startswith(rest)]
            if not longer or not (yield from self.more()):
                found = max((marker for marker in markers if rest.startswith(marker)), key=len, default=None)
                self.at += len(found or "")
                return found

    def comes(self, *markers: str) -> Parsing[bool]:
        """Whether one of these texts comes next, which is not read."""
        start = self.at
        found = yield from self.match(*markers)
        self.at = start
        return found is not None

    def run(self, pattern: re.Pattern[str]) -> Parsing[str]:
        """Read what matches a pattern of repeated characters, such as `[a-z]*`."""
        start = self.at
        while True:
            found = pattern.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or not (yield from self.more()):
                return self.text[start : self.at]

    def until(
        self, markers: Sequence[str], make: Callable[[str], ReplyPart], *, trim: str = SPACE
    ) -> Parsing[tuple[str | None, str]]:
        """Read up to one of `markers` and over it, making parts of the text before it.

        Returns the marker (None: the text ended first) and the characters of `trim` right before it, which are in no
        part. No marker may begin another. The marker may be read again: it is still there before `at`. Text is held
        back only while it may belong to a marker, or to what is trimmed.
        """
        # This runs for every token: what depends on the markers alone is looked up once.
        search, search_begun = marker_searches(tuple(markers))
        while True:
            text = self.text
            found = search(text, self.at)
            if found is not None:
                end = found.start()
            else:
                begun = search_begun(text, self.at)
                end = len(text) if begun is None else begun.start()
            piece = self.text[self.at : end]
            shown = piece[: max(len(piece.rstrip(trim)), len(piece) - MOST_TRIMMED)]
            if shown:
                yield make(shown)
            if found is not None:
                self.at = end
                self.commit()
                self.at += len(found[0])
                return found[0], piece[len(shown) :]
            self.at += len(shown)
            self.commit()
            if not (yield from self.more()):
                if rest := self.rest(markers):
                    yield make(rest)
                return None, ""

    def rest(self, markers: Sequence[str]) -> str:
        """Read all that is left of a text that is over, and leave out a marker of several tokens that it cuts short."""
        begun = marker_searches(tuple(markers))[1](self.text, self.at)
        is_cut = begun is not None and any(token in begun[0] for token in self.tokens)
        text = self.text[self.at : begun.start() if is_cut and begun is not None else None]
        self.at = len(self.text)
        return text

    def pass_over(self, markers: Sequence[str]) -> Parsing[None]:
        """Leave out what comes before one of `markers`, or all there is."""
        most = max(map(len, markers))
        while (found := self.find(markers, self.at)) is None:
            self.at = max(self.at, len(self.text) - most + 1)
            self.commit()
            if not (yield from self.more()):
                self.at = len(self.text)
                return
        self.at = found[0]

    def take_until(self, *markers: str) -> Parsing[tuple[str, str] | None]:
        """Read up to one of several markers and over it, holding everything back; returns the text and the marker.

        None, and nothing is read, when the text ends without one. No marker may begin another.
        """
        searched, most = self.at, max(map(len, markers))
        while (found := self.find(markers, searched)) is None:
            searched = max(self.at, len(self.text) - most + 1)
            if not (yield from self.more()):
                self.reread += len(self.text) - self.at
                return None
        text = self.text[self.at : found[0]]
        self.at = found[0] + len(found[1])
        return text, found[1]

    def find(self, markers: Sequence[str], start: int) -> tuple[int, str] | None:
        """The first of several markers from an index on, in the text that has come."""
        found = marker_searches(tuple(markers))[0](self.text, start)
        return None if found is None else (found.start(), found[0])


Search: TypeAlias = Callable[[str, int], re.Match[str] | None]
_NEVER = re.compile(r"(?!)")


def begun_markers(markers: Sequence[str]) -> str:
    """A regular expression for texts that begin markers and are none, the longest first."""
    beginnings = sorted({marker[:length] for marker in markers for length in range(1, len(marker))}, key=len)
    return "|".join(map(re.escape, reversed(beginnings))) or "(?!)"


@lru_cache(maxsize=512)
def marker_searches(markers: tuple[str, ...]) -> tuple[Search, Search]:
    """Searches from an index on: for the first marker, and for the longest end of the text that begins one.

    The first takes time for the text up to what it finds alone, the second for the end of the text.
    """
    if not markers:
        return _NEVER.search, _NEVER.search
    begun = re.compile(rf"(?:{begun_markers(markers)})\Z")
    longest = max(map(len, markers)) - 1
    return (
        re.compile("|".join(map(re.escape, markers))).search,
        lambda text, start: begun.search(text, max(start, len(text) - longest)),
    )


def behind(prefix: str, make: Callable[[str], ReplyPart]) -> Callable[[str], ReplyPart]:
    """Like `make`, with this before the first text."""
    waiting = iter((prefix,))
    return lambda text: make(next(waiting, "") + text)


class SourceParser:
    """The parser that a generator makes; a `ReplyParser`."""

    def __init__(self, parse: Callable[[Source], Parsing[None]]) -> None:
        """`parse` reads a source to its end."""
        self._source = Source()
        self._parsing = parse(self._source)

    def push(self, text: str) -> list[ReplyPart]:
        """Take more text."""
        self._source.text += text
        return self._go_on()

    def finish(self) -> list[ReplyPart]:
        """The text is over."""
        self._source.ended = True
        return self._go_on()

    def _go_on(self) -> list[ReplyPart]:
        parts: list[ReplyPart] = []
        for part in self._parsing:
            if part is None:
                break
            joined = _joined(parts[-1], part) if parts else None
            if joined is None:
                parts.append(part)
            else:
                parts[-1] = joined
        return parts


def _joined(first: ReplyPart, then: ReplyPart) -> ReplyPart | None:
    """Two neighbours as one part, if they are of a kind."""
    match first, then:
        case (ContentDelta(), ContentDelta()):
            return ContentDelta(first.text + then.text)
        case (ReasoningDelta(), ReasoningDelta()):
            return ReasoningDelta(first.text + then.text)
        case (ToolCallArguments(), ToolCallArguments()) if first.index == then.index:
            return ToolCallArguments(first.index, first.arguments + then.arguments)
    return None
