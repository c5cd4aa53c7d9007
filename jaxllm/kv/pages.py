"""Ownership of KV pages: reference counts, blank pages, and idle pages whose contents may still be useful."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

NULL_PAGE = 0
"""Where padding writes its keys and values. It is never handed out."""

PAGE_STATES = ("blank", "cached", "held", "shared")
"""Of a page: without contents, with contents that nobody holds, and held by one request or by several."""

_SPARE, _WANTED = 1, 2
"""For pages with contents: whether these are expected to be found again. The second is the first and one more."""


class PageWatcher(Protocol):
    """Sees what becomes of pages."""

    def taken(self, pages: Int32Array, evicted: Sequence[int]) -> None:
        """Pages were handed out, with whose contents those of `evicted` ended."""

    def shared(self, pages: Int32Array) -> None:
        """Contents of pages were found by another request."""

    def forget(self) -> None:
        """All contents are gone."""


class PagePool:
    """Pages 1..num_pages-1, each either held (reference count > 0), idle (count 0, contents kept), or blank.

    Contents are wanted or spare. `take` prefers blank pages, then evicts idle ones: spare ones, those released last
    first, so that who takes and releases many of them gets its own back, and then wanted ones, those released longest
    ago first.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.ref_counts: Int32Array = np.zeros(num_pages, np.int32)
        self._contents = np.zeros(num_pages, np.uint8)  # none, spare or wanted
        self._blank: Int32Array = np.arange(num_pages - 1, -1, -1, dtype=np.int32)  # a stack: low pages leave first
        self._num_blank = num_pages - 1
        self._spare: dict[int, None] = {}  # idle ones, most recently released last
        self._idle: OrderedDict[int, None] = OrderedDict()  # wanted ones, least recently released first
        self.watcher: PageWatcher | None = None
        """Who measures how long contents live, if somebody does."""

    @property
    def num_free(self) -> int:
        """Pages that `take` can hand out, blank or by eviction."""
        return self._num_blank + len(self._spare) + len(self._idle)

    @property
    def num_held(self) -> int:
        """Pages that some request holds."""
        return self.num_pages - 1 - self.num_free

    def take(self, count: int) -> tuple[Int32Array, list[int]]:
        """Hand out `count` <= `num_free` pages with reference count 1.

        Returns the pages, int32 [count], and those among them whose contents were evicted.
        """
        assert count <= self.num_free
        from_blank = min(count, self._num_blank)
        top = self._num_blank
        pages = self._blank[top - from_blank : top][::-1].copy()
        self._num_blank -= from_blank
        evicted: list[int] = []
        if from_blank < count:
            missing = count - from_blank
            spare = min(missing, len(self._spare))
            evicted = [self._spare.popitem()[0] for _ in range(spare)]
            evicted += [self._idle.popitem(last=False)[0] for _ in range(missing - spare)]
            pages = np.concatenate([pages, np.array(evicted, np.int32)])
            self._contents[evicted] = 0
        self.ref_counts[pages] = 1
        if self.watcher is not None:
            self.watcher.taken(pages, evicted)
        return pages, evicted

    def share(self, pages: Int32Array) -> None:
        """Add one holder to each of `pages` (distinct; held or idle)."""
        for page in pages[self.ref_counts[pages] == 0].tolist():
            del (self._idle if self._contents[page] == _WANTED else self._spare)[page]
        self.ref_counts[pages] += 1
        if self.watcher is not None:
            self.watcher.shared(pages)

    def release(self, pages: Int32Array) -> None:
        """Remove one holder from each of `pages` (distinct, in the order of their sequence).

        The last page of a sequence becomes idle first: it is evicted before those that lead to it.
        """
        left = self.ref_counts[pages] - 1
        assert left.size == 0 or left.min() >= 0, "a page was released more often than it was held"
        self.ref_counts[pages] = left
        self._drop(pages[left == 0])

    def release_last(self, pages: Int32Array) -> None:
        """`release` of pages that have one holder each."""
        self.ref_counts[pages] = 0
        self._drop(pages)

    def _drop(self, pages: Int32Array) -> None:
        """Nobody holds these pages any more, in the order of their sequence."""
        contents = self._contents[pages]
        kinds = contents.tobytes()
        for kind in (0, _SPARE, _WANTED):
            count = kinds.count(kind)
            if not count:
                continue
            # Usually all are of one kind.
            own = pages if count == len(pages) else pages[contents == kind]
            if not kind:
                self._push_blank(own)
            elif kind == _SPARE:
                # The last of these is evicted first.
                self._spare.update(dict.fromkeys(own.tolist()))
            else:
                self._idle.update(dict.fromkeys(own[::-1].tolist()))

    def have_one_holder(self, pages: Int32Array) -> bool:
        """Whether each of these pages is held, and by nobody else."""
        return bool((self.ref_counts[pages] == 1).all())

    def keep_when_idle(self, pages: Sequence[int] | Int32Array, *, wanted: bool | npt.NDArray[np.bool_] = True) -> None:
        """Keep the contents of these held pages when their last holders leave, until `take` needs the room.

        `wanted` is the same for all, or is broadcast to the shape of `pages`.
        """
        assert self.ref_counts[pages].all()
        self._contents[pages] = wanted + _SPARE

    def want(self, pages: Sequence[int]) -> None:
        """Contents of these pages, which are held or idle, are expected to be found again."""
        for page in pages:
            if page in self._spare:
                del self._spare[page]
                self._idle[page] = None
        self._contents[pages] = _WANTED

    def count_idle(self, pages: Int32Array) -> int:
        """How many of `pages` are idle, so that sharing them uses up free pages."""
        return int(np.count_nonzero(self.ref_counts[pages] == 0))

    def forget_contents(self) -> None:
        """Make every idle page blank. No page may be held."""
        assert self.num_held == 0
        self._contents[:] = 0
        self._push_blank(np.array([*self._spare, *self._idle], np.int32))
        self._spare.clear()
        self._idle.clear()
        if self.watcher is not None:
            self.watcher.forget()

    def _push_blank(self, pages: Int32Array) -> None:
        self._blank[self._num_blank : self._num_blank + len(pages)] = pages
        self._num_blank += len(pages)

    def states(self) -> npt.NDArray[np.uint8]:
        """What each page but the null page is, uint8 [num_pages - 1]: one of `PAGE_STATES`, by its place there."""
        counts = self.ref_counts[1:]
        return np.where(counts, np.minimum(counts, 2) + 1, self._contents[1:] != 0).astype(np.uint8)

    def check_integrity(self) -> None:
        """Assert that every page but the null page is exactly one of held, idle and blank."""
        blank = self._blank[: self._num_blank].tolist()
        held = np.flatnonzero(self.ref_counts).tolist()
        assert sorted(blank + held + list(self._spare) + list(self._idle)) == list(range(1, self.num_pages))
        assert type(self._num_blank) is int, "a number of NumPy's would get into what is sent"
        assert self.ref_counts.min() >= 0
        assert not self._contents[blank].any(), "a blank page claims contents"
        assert (self._contents[list(self._spare)] == _SPARE).all(), "a spare page has no contents, or wanted ones"
        assert (self._contents[list(self._idle)] == _WANTED).all(), "an idle page has no contents, or spare ones"

    def retained_pages(self) -> set[int]:
        """Pages whose contents are or will be kept when idle."""
        return set(np.flatnonzero(self._contents).tolist())
