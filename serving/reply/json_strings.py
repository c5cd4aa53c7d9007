"""Texts within JSON as models write them, handed on as they come."""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from jaxllm.serving.reply.parts import ReplyPart
from jaxllm.serving.reply.source import Parsing, Search, Source, begun_markers

_SPACES = re.compile(r"[ \t\r\n]*")
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_ENDS_STRING = frozenset(",:}]")
QUOTES: Final = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
"""Searches for what matters in a text, by the quotes that it stands in."""


class JsonStrings:
    """Reads texts in quotes, waits, and collects what is handed on.

    What is wrong in a text becomes the nearest JSON: raw line breaks, quotes within it, escapes that JSON has not.
    """

    def __init__(
        self,
        source: Source,
        make: Callable[[str], ReplyPart] | None,
        stops: tuple[str, ...],
        outside: tuple[str, ...],
    ) -> None:
        self._source = source
        self._make = make
        self.held = list[str]()
        """The text that was read, where no parts are made of it."""
        self._stops = stops
        self._all_stops = (*stops, *outside)
        self._firsts = frozenset(stop[0] for stop in self._all_stops)
        self._longest = max(map(len, self._all_stops), default=1)
        self._out = list[str]()

    def _string(self, quote: str) -> Parsing[bool]:
        """Read a text in quotes; False: it was not closed."""
        source, stops = self._source, self._stops
        self._out.append('"')
        source.at += 1
        search = _string_mark(quote, stops)
        while True:
            found = search(source.text, source.at)
            end = len(source.text) if found is None else found.start()
            if end > source.at:
                self._out.append(source.text[source.at : end])
                source.at = end
            if found is None or found.lastgroup:
                if not (yield from self._more()):
                    self._out.append(source.rest(stops))
                    return False
            elif found[0] == quote:
                if (yield from self._ends_here()):
                    return True
            elif found[0] == "\\":
                yield from self._escape()
            elif len(found[0]) == 1 and found[0] not in stops:
                self._out.append(json.dumps(found[0])[1:-1])
                source.at += 1
            elif (yield from self._goes_on(quote, found.end())):
                stops = ()
                search = _string_mark(quote, stops)
            else:
                return False

    def _ends_here(self) -> Parsing[bool]:
        """Read a quote: it ends the text if what may follow a text follows."""
        source, start = self._source, self._source.at
        if source.text[start + 1 : start + 2] in _ENDS_STRING:
            source.at += 1
            self._out.append('"')
            return True
        following = yield from self._following(start + 1)
        source.at = start + 1 + len(following) - len(following.lstrip(" \t\r\n"))
        last = following[-1:]
        ends = not following.strip(" \t\r\n") or last in _ENDS_STRING
        if not ends and last in self._firsts:
            ends = yield from self._stands_at_stop()
        source.at = start + 1
        self._out.append('"' if ends else r"\"" if source.text[start] == '"' else "'")
        return ends

    def _following(self, position: int) -> Parsing[str]:
        """Space that comes from this index on, and one character after it if there is one."""
        source, start = self._source, position
        while True:
            position = spaces_end(source.text, position)
            if position < len(source.text) or not (yield from self._wait()):
                return source.text[start : position + 1]

    def _goes_on(self, quote: str, position: int) -> Parsing[bool]:
        """Whether a text in which markup stands is closed after it: by its next quote, as no other call's would."""
        source, pattern = self._source, QUOTES[quote]
        while True:
            found = pattern.search(source.text, position)
            if found is not None and found[0] == quote:
                following = yield from self._following(found.end())
                return following[-1:] in _ENDS_STRING
            position = max(position, len(source.text)) if found is None else found.end() + 1
            if position >= len(source.text) and not (yield from self._wait()):
                return False

    def _escape(self) -> Parsing[None]:
        """Read a backslash and what belongs to it."""
        source = self._source
        while len(source.text) < source.at + 2:
            if not (yield from self._wait()):
                self._out.append("\\")
                source.at += 1
                return
        character, length = source.text[source.at + 1], 2
        if character == "u":
            length = yield from self._unicode_escape()
        if not length or character not in "\"\\/bfnrtu'":
            self._out.append("\\\\")
            source.at += 1
            return
        self._out.append("'" if character == "'" else source.text[source.at : source.at + length])
        source.at += length

    def _unicode_escape(self) -> Parsing[int]:
        """The length of an escape by number, 0 where it is none."""
        source = self._source
        while True:
            found = _HEX.match(source.text, source.at + 2)
            assert found is not None
            if len(found[0]) == 4:
                return 6
            if found.end() < len(source.text):
                return 0
            if not (yield from self._wait()):
                return len(source.text) - source.at

    # Waiting

    def _stands_at_stop(self) -> Parsing[bool]:
        source = self._source
        while True:
            rest = source.text[source.at : source.at + self._longest]
            if rest.startswith(self._all_stops):
                return True
            if not any(stop.startswith(rest) for stop in self._all_stops) or not (yield from self._wait()):
                return False

    def _flush(self) -> Parsing[None]:
        if self._out:
            text = "".join(self._out)
            self._out.clear()
            if self._make is None:
                self.held.append(text)
            elif text:
                yield self._make(text)

    def _wait(self) -> Parsing[bool]:
        """Wait for more text, with all positions in it as they were."""
        yield from self._flush()
        return (yield from self._source.more())

    def _more(self) -> Parsing[bool]:
        """Wait for more text, and forget what was read. This runs for every token."""
        source, out = self._source, self._out
        if out:
            text = out[0] if len(out) == 1 else "".join(out)
            out.clear()
            if self._make is None:
                self.held.append(text)
            elif text:
                yield self._make(text)
        if self._make is not None:
            source.commit()
        known = len(source.text)
        while len(source.text) == known and not source.ended:
            yield None
        return len(source.text) > known


def spaces_end(text: str, at: int) -> int:
    """The index after space that begins at an index."""
    found = _SPACES.match(text, at)
    assert found is not None
    return found.end()


@lru_cache(maxsize=256)
def _string_mark(quote: str, stops: tuple[str, ...]) -> Search:
    """Searches for what matters within a text: quotes, escapes, characters that JSON has not, and markup.

    A group has markup that the end of the text only begins.
    """
    characters = r"[\"\\\x00-\x1f]" if quote == '"' else r"['\"\\\x00-\x1f]"
    begun = f"(?P<begun>(?:{begun_markers(stops)})\\Z)"
    return re.compile("|".join([*map(re.escape, stops), characters, *([begun] if stops else [])])).search
