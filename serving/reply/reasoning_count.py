"""Counting the tokens of reasoning."""

from collections.abc import Sequence

Tokens = tuple[int, ...]


class ReasoningCount:
    """Counts tokens between those that begin reasoning and those that end it, which are not counted themselves."""

    __slots__ = ("_begins", "_count", "_ends", "_inside", "_last", "_longest", "_since")

    def __init__(self, begins: Sequence[Tokens], ends: Sequence[Tokens], *, inside: bool) -> None:
        """`inside`: the first token is reasoning."""
        self._begins, self._ends = begins, ends
        self._inside = inside
        self._count = 0
        self._since = 0
        self._longest = max(map(len, (*begins, *ends)))
        self._last: list[int] = []

    def push(self, token_ids: Sequence[int]) -> None:
        """Take more tokens."""
        for token_id in token_ids:
            self._last = [*self._last, token_id][-self._longest :]
            self._since += self._inside
            found = self._match(self._ends if self._inside else self._begins)
            if found:
                if self._inside:
                    self._count += max(0, self._since - found)
                self._inside = not self._inside
                self._since = 0
                self._last.clear()

    def _match(self, marks: Sequence[Tokens]) -> int:
        """Length of the mark that the last token completes; 0: it completes none."""
        return max((len(mark) for mark in marks if tuple(self._last[-len(mark) :]) == mark), default=0)

    @property
    def count(self) -> int:
        """Tokens of reasoning so far."""
        return self._count + self._since
