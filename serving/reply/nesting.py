"""Where a value in brackets ends, found while its text comes."""

import re
from functools import lru_cache

_OPENING, _CLOSING = "([{", ")]}"


class Nesting:
    """Counts brackets outside of quotes.

    Begin it at an opening bracket. Which bracket closes which is not checked: what a model writes is handed on as it
    is, and only its end must be found.
    """

    __slots__ = ("_depth", "_escaped", "_quote", "_quotes")

    def __init__(self, quotes: str = '"') -> None:
        """`quotes` are the characters that begin and end texts."""
        self._quotes = quotes
        self._depth = 0
        self._quote = ""
        self._escaped = False

    @property
    def quoted(self) -> bool:
        """Whether what comes next is within a text."""
        return bool(self._quote)

    def scan(self, text: str, at: int, stops: str = "", limit: int | None = None) -> tuple[int, str]:
        """Go on at index `at`, up to `limit`; returns the index after what was taken, and the character that ended it.

        That is the bracket that closes the value, one of `stops` right inside the first bracket, or none at the end of
        the text.
        """
        outside = _pattern(self._quotes + _OPENING + _CLOSING + stops)
        limit = len(text) if limit is None else limit
        while at < limit:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_pattern("\\" + self._quote) if self._quote else outside).search(text, at, limit)
            if found is None:
                return limit, ""
            at = found.end()
            quoted = bool(self._quote)
            if self._take(found[0]) or (found[0] in stops and self._depth == 1 and not quoted):
                return at, found[0]
        return at, ""

    def _take(self, character: str) -> bool:
        """Take one that matters; True: it closes the value."""
        if character == "\\":
            self._escaped = True
        elif self._quote:
            self._quote = ""
        elif character in self._quotes:
            self._quote = character
        elif character in _OPENING:
            self._depth += 1
        elif character in _CLOSING:
            self._depth -= 1
            return self._depth == 0
        return False


@lru_cache(maxsize=64)
def _pattern(characters: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(characters)}]")
