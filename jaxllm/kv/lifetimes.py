"""How long contents of KV pages live, are used, and lie idle before they are evicted, of a sample of the pages."""

import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec
import numpy as np

from jaxllm.kv.pages import Int32Array

_MOST_ACCESSES = 4
"""The last accesses of a page that are remembered, as in vLLM."""


class PageLife(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A page whose contents were evicted: seconds from their beginning, from their last use, and between uses."""

    lifetime: float
    idle: float
    gaps: tuple[float, ...] = ()


class PageLifetimes:
    """Follows each page that is handed out with a probability of `share`."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        self._random = np.random.default_rng()
        self._births: dict[int, float] = {}
        self._uses: dict[int, list[float]] = {}
        self._ended: list[PageLife] = []

    def taken(self, pages: Int32Array, evicted: Iterable[int]) -> None:
        """Pages were handed out; contents of those that are `evicted` ended with that."""
        now = self._clock()
        for page in evicted:
            birth = self._births.get(page)
            if birth is not None:
                uses = self._uses.get(page, [])
                gaps = tuple(later - earlier for earlier, later in pairwise(uses))
                self._ended.append(PageLife(now - birth, now - (uses[-1] if uses else birth), gaps))
        for page in pages.tolist() if self._births else ():
            self._births.pop(page, None)
            self._uses.pop(page, None)
        for page in pages[self._random.random(len(pages)) < self._share].tolist():
            self._births[page] = now

    def shared(self, pages: Int32Array) -> None:
        """Contents of pages were found by another request."""
        now = self._clock()
        for page in pages.tolist():
            if page in self._births:
                uses = self._uses.setdefault(page, [])
                uses.append(now)
                del uses[:-_MOST_ACCESSES]

    def forget(self) -> None:
        """All contents are gone, though nobody needed the room."""
        self._births.clear()
        self._uses.clear()

    def take(self) -> tuple[PageLife, ...]:
        """The lives that have ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended
