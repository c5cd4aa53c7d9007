"""Objects of JSON as models write them, handed on as they come: what is wrong in them is put right on the way.

What is JSON is handed on to the last character. Python's words and quotes, numbers that JSON does not know, commas too
many or too few, raw line breaks and quotes within texts become the nearest JSON. So a value that was closed is JSON.
"""

import json
import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from jaxllm.serving.reply.json_strings import QUOTES, JsonStrings, spaces_end
from jaxllm.serving.reply.parts import ReplyPart
from jaxllm.serving.reply.scalars import scalar
from jaxllm.serving.reply.source import Parsing, Search, Source

_SPACE_OR_END = frozenset(("", " ", "\t", "\r", "\n"))
_MERGED = ""
"""A level whose brackets are left out: it stands where the name of a member should."""


class _Next(Enum):
    """The state of a value's reader: the next token."""

    KEY = 1
    COLON = 2
    VALUE = 3
    COMMA = 4


def json_text(
    source: Source, make: Callable[[str], ReplyPart], stops: Sequence[str] = (), outside: Sequence[str] = ()
) -> Parsing[bool]:
    """Read a value in brackets, making parts of it; False: the text ended in it, or markup stands in it.

    `stops` are markup that ends a value although it was not closed, and is left to be read; `outside` are more of them
    outside of texts. Within a text that is closed after them, they belong to the text.
    """
    return _JsonText(source, make, tuple(stops), tuple(outside)).read()


def read_json(source: Source, stops: Sequence[str] = (), outside: Sequence[str] = ()) -> Parsing[str | None]:
    """Read a value in brackets and return it as JSON; None: it was not closed."""
    reading = _JsonText(source, None, tuple(stops), tuple(outside))
    return "".join(reading.held) if (yield from reading.read()) else None


def whole_json(text: str) -> str | None:
    """A value in brackets as JSON; None: this text is none, or more than one."""
    source = Source()
    source.text, source.ended = text.strip(), True
    if not source.text.startswith(("{", "[")):
        return None
    reading = read_json(source)
    try:
        next(reading)
    except StopIteration as stop:
        found: str | None = stop.value
        return found if source.at == len(source.text) else None
    raise AssertionError("nothing is waited for at the end of a text")


class _JsonText(JsonStrings):
    """Reads one value."""

    def __init__(
        self,
        source: Source,
        make: Callable[[str], ReplyPart] | None,
        stops: tuple[str, ...],
        outside: tuple[str, ...],
    ) -> None:
        super().__init__(source, make, stops, outside)
        self._patterns = _patterns(self._all_stops)
        self._comma = list[str]()
        """A comma and the space after it, until it is known that something follows."""
        self._levels = list[str]()
        self._next = _Next.VALUE

    def read(self) -> Parsing[bool]:
        """Read the value, which begins with a bracket."""
        source, closed, plain = self._source, False, self._patterns.plain
        while not closed:
            if (found := plain(source.text, source.at)) is not None and self._takes(found[0]):
                source.at = found.end()
                continue
            character = source.text[source.at : source.at + 1]
            # Generators cost more than what they do here: they are for what must be waited for.
            if character in _SPACE_OR_END:
                if not (yield from self._reach()):
                    break
                character = source.text[source.at]
            if character in self._firsts and not (character == "{" and self._next is _Next.VALUE) and (
                yield from self._stands_at_stop()
            ):  # fmt: skip
                break
            if character in QUOTES:
                self._lead()
                if not (yield from self._string(character)):
                    break
            elif character in "{[":
                self._open(character)
            elif character in "}]":
                closed = self._close()
            elif character in ",:":
                self._mark(character)
            elif not (yield from self._bare()):
                break
        self._out += self._comma
        yield from self._flush()
        return closed

    def _reach(self) -> Parsing[bool]:
        """Hand on space; False: the text is over."""
        source = self._source
        while True:
            end = spaces_end(source.text, source.at)
            if end > source.at:
                (self._comma or self._out).append(source.text[source.at : end])
                source.at = end
            if end < len(source.text):
                return True
            if not (yield from self._more()):
                return False

    # Brackets and what is between values

    def _lead(self) -> bool:
        """Write what comes before a text or a word; returns whether that is the name of a member."""
        if self._comma:
            self._out += self._comma
            self._comma.clear()
        elif self._next is _Next.COMMA:
            self._out.append(", ")
            self._next = self._first
        elif self._next is _Next.COLON:
            self._out.append(": ")
            self._next = _Next.VALUE
        is_key = self._next is _Next.KEY
        self._next = _Next.COLON if is_key else _Next.COMMA
        return is_key

    def _takes(self, plain: str) -> bool:
        """Hand on a text or a word that is JSON, where one is expected."""
        if self._next is not _Next.VALUE and not (self._next is _Next.KEY and plain[0] == '"'):
            return False
        self._lead()
        self._out.append(plain)
        return True

    @property
    def _first(self) -> _Next:
        """How an item of this level begins."""
        return _Next.VALUE if self._levels and self._levels[-1] == "[" else _Next.KEY

    def _open(self, bracket: str) -> None:
        self._source.at += 1
        if self._levels and self._first is _Next.KEY and self._next in (_Next.KEY, _Next.COMMA):
            self._levels.append(_MERGED)
            return
        if self._levels:
            self._lead()
        self._out.append(bracket)
        self._levels.append(bracket)
        self._next = self._first

    def _complete_member(self) -> None:
        """Write the value that a member of an object lacks."""
        if self._first is _Next.KEY and self._next in (_Next.COLON, _Next.VALUE):
            self._out.append(": null" if self._next is _Next.COLON else "null")
            self._next = _Next.COMMA

    def _close(self) -> bool:
        """Close a level with its own bracket, whichever this is; True: it was the last."""
        self._source.at += 1
        self._complete_member()
        level = self._levels.pop()
        if level != _MERGED:
            self._out += self._comma[1:]
            self._comma.clear()
            self._out.append("}" if level == "{" else "]")
            self._next = _Next.COMMA
        return not self._levels

    def _mark(self, mark: str) -> None:
        """Take a comma or a colon; one that has no place is left out."""
        self._source.at += 1
        if mark == ":":
            if self._next is _Next.COLON:
                self._out.append(mark)
                self._next = _Next.VALUE
            return
        self._complete_member()
        if self._next is _Next.COMMA:
            self._comma.append(mark)
            self._next = self._first

    def _bare(self) -> Parsing[bool]:
        """Read a word without quotes; False: the text ended in it."""
        source, junk = self._source, self._next is _Next.COMMA
        search = self._patterns.key_end if self._next is _Next.KEY else self._patterns.value_end
        start, searched = source.at, source.at + 1
        while (found := search(source.text, searched)) is None:
            searched = max(searched, len(source.text) - self._longest + 1)
            if not (yield from self._wait()):
                if not junk:
                    self._lead()
                    self._out.append(source.text[start:])
                source.at = len(source.text)
                return False
        source.at = found.start()
        text = source.text[start : source.at]
        if not junk:
            word = text.rstrip(" \t")
            is_key = self._lead()
            self._out.append(json.dumps(word, ensure_ascii=False) if is_key else scalar(word))
            self._out.append(text[len(word) :])
        return True


class _Patterns(NamedTuple):
    """Searches of a reader, by its stops."""

    plain: Search
    """A text or a word as JSON has it, all there and with what may follow right after it."""
    key_end: Search
    value_end: Search
    """The characters that end a word without quotes."""


@lru_cache(maxsize=256)
def _patterns(stops: tuple[str, ...]) -> _Patterns:
    marks = [re.escape(stop) for stop in stops]
    firsts = "".join(re.escape(first) for first in sorted({stop[0] for stop in stops}))
    word = r"-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,99})?|true|false|null"
    return _Patterns(
        # A colon after a word is part of it, as it is where the word comes in pieces.
        re.compile(rf'"[^"\\\x00-\x1f{firsts}]*"(?=[,:}}\]])|(?:{word})(?=[,}}\]])').match,
        re.compile("|".join([r"[,\[\]{}\"\r\n:]", *marks])).search,
        re.compile("|".join([r"[,\[\]{}\"\r\n]", *marks])).search,
    )
