"""Groups of page tables with equal needs: which of a request's pages each must have.

A request has one page table for each slice of the model's layers (`jaxllm.models.cache_plan`). Tables of layers without
a window keep all pages; those of layers with a window get pages step by step, and give them back as soon as no token to
come can see them.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

_ENDLESS = 2**31 - 1
"""More tokens or pages than there are."""


@dataclass(frozen=True)
class TableGroup:
    """Neighbouring page tables, from `first` on `count` of them, of layers with a window (0: none)."""

    window: int
    first: int
    count: int

    @property
    def tables(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class CacheGroups:
    """The page tables of a request, by the window of each table's layers; those with equal windows are neighbours.

    `page_size` is in tokens. `lookahead` is the most tokens of a request that a step computes: tables of layers with
    windows get pages for so many after the computed ones. With `has_states` there are recurrent layers, too. Tables
    with windows keep `margin` pages more than tokens to come can see: with one, a request that leaves its slot still
    has the whole window after its last full page.
    """

    windows: tuple[int, ...] = (0,)
    page_size: int = 16
    lookahead: int = 0
    has_states: bool = False
    margin: int = 0

    @cached_property
    def all(self) -> tuple[TableGroup, ...]:
        """The groups, in order of their tables."""
        groups, first = [], 0
        for window, members in groupby(self.windows):
            groups.append(TableGroup(window, first, len(list(members))))
            first += groups[-1].count
        assert len({group.window for group in groups}) == len(groups), "tables with equal windows are not neighbours"
        return tuple(groups)

    @cached_property
    def num_tables(self) -> int:
        """Page tables of a request."""
        return len(self.windows)

    @cached_property
    def gives_back(self) -> bool:
        """Whether requests give pages back while they run."""
        return any(self.windows)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens fill in one table."""
        return -(-num_tokens // self.page_size)

    def begin(self, group: TableGroup, computed: int) -> int:
        """The first page in a table of the group that a token after `computed` others can see."""
        return max(computed - group.window + 1, 0) // self.page_size if group.window else 0

    def first_kept_page(self, group: TableGroup, computed: int) -> int:
        """The first page in a table of the group that a request with so many computed tokens keeps."""
        return max(self.begin(group, computed) - self.margin, 0)

    def end(self, group: TableGroup, computed: int, known: int) -> int:
        """After the last page that a request with so many computed and known tokens is given in a table."""
        return self.pages_for(min(known, computed + self.lookahead) if group.window else known)

    def new_pages(self, computed: int, known: int) -> int:
        """Pages of all tables for a request whose first `computed` tokens, which fill pages, are in the cache."""
        first = self.pages_for(computed)
        return sum((self.end(group, computed, known) - first) * group.count for group in self.all)

    def usual_pages(self, num_tokens: int) -> int:
        """Pages of all tables that a request of so many tokens holds while it decodes."""
        pages = self.pages_for(num_tokens)
        return sum(min(pages, self._within(group.window)) * group.count for group in self.all)

    def most_pages(self, num_tokens: int, sequences: int = 1, prompt: int = 0) -> int:
        """Pages of all tables that a request of at most so many tokens ever needs at once.

        Its sequences share the full pages of the prompt, in tables that keep them; in the worst case no others.
        """
        pages, shared = self.pages_for(num_tokens), prompt // self.page_size
        apart = shared + sequences * (pages - shared)
        return sum(
            min(apart, sequences * self._within(group.window, self.lookahead)) * group.count for group in self.all
        )

    def tokens_held(self, num_pages: int, length: int) -> int:
        """Tokens of requests of `length` tokens that so many pages hold."""
        if not self.gives_back:
            return num_pages * self.page_size // self.num_tables
        return num_pages * length // self.usual_pages(length)

    def _within(self, window: int, more: int = 1) -> int:
        """Most pages for the last `window` tokens before a token, `more` from it on, and the margin; no end if 0."""
        return 1 + self.margin + self.pages_for(window - 1 + max(more, 1)) if window else _ENDLESS

    def longest(self, num_pages: int) -> int:
        """Tokens of the longest request that never needs more than so many pages; 2**31 - 1 if any would do."""
        low, high = 0, _ENDLESS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.most_pages(middle) <= num_pages else (low, middle - 1)
        return low
