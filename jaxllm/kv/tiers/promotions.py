"""What is on its way from files to the host's memory, for requests that go on from it to the devices."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jaxllm.kv.events import About
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool
from jaxllm.requests.request import Request

PAUSE_SECONDS = 30.0
"""Nothing is asked of files for so long after a request has waited for them in vain."""

Wanted = tuple[bytes, int, int]
"""The digest, the part and, in its request, the number of a page or state."""


class Files(Protocol):
    """Copies in files."""

    def has(self, digest: bytes, part: int) -> bool:
        """Whether there was one, as far as is known. Costs nothing."""
        ...

    def size(self, part: int) -> int:
        """Bytes of a copy."""
        ...

    def is_state(self, part: int) -> bool:
        """Whether it is of states rather than of a page."""
        ...

    def patience(self, num_tokens: int) -> float:
        """Seconds that a request may wait for so many tokens."""
        ...


@dataclass(eq=False, slots=True)
class Promotion:
    """Copies that are brought to the host (`left` have not come yet), and requests that are `waiting` for them.

    Once it is over, nobody waits any more, and the rest need not be read.
    """

    copies: list[HostCopy]
    num_tokens: int
    left: int
    deadline: float
    waiting: list[Request] = field(default_factory=list)
    is_over: bool = False


class Promotions:
    """Belongs to a host tier that has `files`."""

    def __init__(self, host: HostPool, files: Files) -> None:
        self.num_queries = self.num_hits = self.num_failures = self.num_late = 0
        """Pages and states that were looked up, that came, and that could not be read; promotions that took too long;
        so far."""
        self.files = files
        self.start: Callable[[Promotion], None] = _nobody
        """Begins to read what is promoted, and calls `come` for each copy later on."""
        self.describe: Callable[[Request], Callable[[int], About]] | None = None
        """Says what a request's page of a number is made of, where copies are told of."""
        self._host = host
        self._under_way: dict[tuple[bytes, int], Promotion] = {}
        self._released: list[Request] = []
        self._paused_until = 0.0

    def __len__(self) -> int:
        """Copies that have not come yet."""
        return len(self._under_way)

    def begin(self, request: Request, wanted: Sequence[Wanted], num_tokens: int) -> bool:
        """Whether a request is to wait, since what it wants comes from files; it gets `num_tokens` more by that.

        Each request has something brought once before it runs, but may wait more often for what others have brought.
        """
        absent = [each for each in wanted if not self._host.has(*each[:2])]
        now = time.monotonic()
        if now < self._paused_until:
            return False
        others = next((self._under_way[key] for each in absent if (key := each[:2]) in self._under_way), None)
        if others is not None:
            if not others.is_over:
                others.waiting.append(request)
            return not others.is_over
        request.asks_files = False
        self.num_queries += len(absent)
        # What is here already must not go to make room for the rest.
        self._host.touch(digest for digest, _, _ in wanted)
        copies = self._make_room(absent, None if self.describe is None else self.describe(request))
        if not copies:
            return False
        # What others have asked for comes first; to compute that would take its time as well.
        before = sum(each.num_tokens for each in set(self._under_way.values()) if not each.is_over)
        deadline = now + self.files.patience(before + num_tokens)
        promotion = Promotion(copies, num_tokens, len(copies), deadline, [request])
        self._under_way |= {(copy.digest, copy.part): promotion for copy in copies}
        self.start(promotion)
        return True

    def _make_room(self, absent: Sequence[Wanted], describe: Callable[[int], About] | None) -> list[HostCopy]:
        copies: list[HostCopy] = []
        for digest, part, number in absent:
            if self._host.knows(digest, part) or not self.files.has(digest, part):
                continue
            copy = self._host.begin_write(digest, part, self.files.size(part))
            if copy is None:
                break
            if describe is not None and not self.files.is_state(part):
                copy.about = describe(number)
            copies.append(copy)
        return copies

    def come(self, promotion: Promotion, copy: HostCopy, checksum: int | None) -> None:
        """A copy is there, with this checksum; None: it could not be read."""
        self.num_hits += checksum is not None
        self._host.end_write(copy, checksum)
        del self._under_way[copy.digest, copy.part]
        promotion.left -= 1
        if not promotion.left:
            # What leads to others stays longest.
            self._host.touch(each.digest for each in reversed(promotion.copies))
            self._end(promotion)

    def expire(self) -> None:
        """Let those run that have waited for too long: computing is faster."""
        if not self._under_way:
            return
        now = time.monotonic()
        for promotion in set(self._under_way.values()):
            if not promotion.is_over and now > promotion.deadline:
                self.num_late += 1
                self._paused_until = now + PAUSE_SECONDS
                self._end(promotion)

    def cancel(self) -> None:
        """Nobody waits any more."""
        for promotion in set(self._under_way.values()):
            self._end(promotion)

    def _end(self, promotion: Promotion) -> None:
        promotion.is_over = True
        self._released += promotion.waiting
        promotion.waiting = []

    def take_released(self) -> list[Request]:
        """Requests that need not wait any more since the last call; some may have ended."""
        released, self._released = self._released, []
        return released


def _nobody(promotion: Promotion) -> None:
    raise AssertionError("nobody reads files")
