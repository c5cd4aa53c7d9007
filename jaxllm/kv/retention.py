"""Which pages of tables with sliding windows are worth keeping once no running request sees them.

A prefix of a request can be reused only where each table still has what the next token sees: in a table with a window,
the last window before that place. So of a long prompt most window pages can never be part of a hit. These are worth
keeping:

- the windows at the ends that `ends` lists: the last full page of what was known when a request was admitted, and
  where its tokens begin to differ from those of other requests;
- the window at the place where a request leaves its slot (`last_window`);
- a window every `interval` tokens, if asked for.

Each of them is kept with one page more, so that a request that differs within the last page finds the one before.
All other pages can be found, too, until their room is needed, but they are the first to be overwritten.
"""

from collections.abc import Iterator, Sequence

from jaxllm.kv.groups import CacheGroups, TableGroup
from jaxllm.requests.request import Request


class Retention:
    """The rule for the tables of `groups`; places and ranges are in pages.

    `interval` is in tokens and is rounded up to whole pages; 0: only at the ends, None: keep every window.
    """

    def __init__(self, groups: CacheGroups, interval: int | None = 0) -> None:
        self._groups = groups
        self._size = groups.page_size
        self._interval = groups.pages_for(interval or 0)
        self._keeps_all = interval is None
        self.is_sparse = groups.gives_back and interval is not None
        """Whether there are pages that are not worth keeping."""

    def ends(self, num_tokens: int, num_shared: int) -> tuple[int, ...]:
        """Where hits are likely to end: in a request of so many tokens, with so many pages in common with others."""
        full = num_tokens // self._size
        return (num_shared, full) if 0 < num_shared < full else (full,) if full else ()

    def ranges(self, group: TableGroup, ends: tuple[int, ...], first: int, last: int) -> Iterator[range]:
        """Ranges of the pages `first` to `last` in tables of the group that are worth keeping; they may overlap."""
        for end in ends:
            yield self._within(group, end, first, last)
        step = self._interval
        if step and step * self._size <= group.window:
            yield range(first, last)  # the windows overlap
        elif step:
            end = (first // step + 1) * step
            while self._begin(group, end) < last:
                yield self._within(group, end, first, last)
                end += step

    def keeps_all(self, group: TableGroup) -> bool:
        """Whether every page in tables of the group is worth keeping."""
        return self._keeps_all or not group.window

    def keeps_state(self, num_tokens: int, step: int) -> bool:
        """Whether the snapshot of states after so many tokens is worth keeping; there is one every `step` tokens."""
        if self._keeps_all or not self._interval:
            return self._keeps_all
        interval = self._interval * self._size
        return num_tokens // interval > max(num_tokens - step, 0) // interval

    def concerned(self, requests: Sequence[Request], places: Sequence[int]) -> list[tuple[Request, int]]:
        """Those requests whose pages at these places, one of each, may be worth keeping in tables with windows."""
        each = zip(requests, places, strict=True)
        if self._interval:
            return list(each)
        return [(request, place) for request, place in each if (ends := request.kept_ends) and place < ends[-1]]

    def last_window(self, group: TableGroup, end: int) -> range:
        """The pages of the last window of a request that leaves when `end` pages are full."""
        return range(self._begin(group, end), end)

    def _within(self, group: TableGroup, end: int, first: int, last: int) -> range:
        return range(max(first, self._begin(group, end)), min(last, end))

    def _begin(self, group: TableGroup, end: int) -> int:
        """The first page for hits at `end` and a page before it."""
        return self._groups.begin(group, max(end - 1, 0) * self._size)
