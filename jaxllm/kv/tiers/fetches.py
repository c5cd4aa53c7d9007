"""What is on its way from other engines to the host's memory, for requests that wait for it.

Copies that have come stay until their requests run: others that wait for room must not evict them. One thread calls
everything.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jaxllm.kv.events import About
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool
from jaxllm.kv.tiers.leases import Key
from jaxllm.kv.tiers.promotions import Wanted
from jaxllm.requests.request import Request

Failure = Literal["unreachable", "refused", "timeout", "gone", "damaged", "no_room"]
"""Why pages did not come: nobody answers, the peer has other pages or does not want us, it takes too long, it does not
have them any more, they have other bytes than were sent, or there is no room on the host."""


MOST_TRIES = 2
"""A fetch is tried once more where what another one was to bring has not come."""


@dataclass(frozen=True)
class Source:
    """Where pages are: the address of an engine, and the name that they are kept under."""

    host: str
    port: int
    name: str
    engine_id: str | None = None


@dataclass(eq=False, slots=True)
class Fetch:
    """Copies that are to come from a source until `deadline` (monotonic clock), and requests that are `waiting`.

    Whoever fetches `copies` looks at `is_over`, and then writes no more; afterwards says so to `Fetches.stop`.
    """

    source: Source
    wanted: list[Wanted]
    num_tokens: int
    deadline: float
    waiting: list[Request]
    copies: list[HostCopy] = field(default_factory=list)
    left: set[Key] = field(default_factory=set)
    is_running: bool = False
    is_over: bool = False
    tries: int = 0


@dataclass(eq=False, slots=True)
class Ended:
    """A request need not wait any more; `num_tokens` have come, or `failure` says why not."""

    request: Request
    num_tokens: int
    failure: Failure | None


class Fetches:
    """Fetches into `host`, each for so many seconds at most; `size_of` has the bytes of a part; states are the last."""

    def __init__(self, host: HostPool, size_of: Callable[[int], int], states: int, seconds: float) -> None:
        self.num_tokens = self.num_bytes = 0
        """Tokens and bytes that have come, so far."""
        self.num_failed: dict[Failure, int] = {}
        self.start: Callable[[Fetch], None] = _nobody
        """Begins to fetch, and calls `come` for each copy and `stop` at the end, later on."""
        self.on_end: Callable[[Fetch], None] = _nobody
        """Hears of a fetch that nobody waits for any more: its source need not keep anything."""
        self.describe: Callable[[Request], Callable[[int], About]] | None = None
        """Says what a request's page of a number is made of, where copies are told of."""
        self._host, self._size_of, self._states, self._seconds = host, size_of, states, seconds
        self._fetches: dict[Source, Fetch] = {}
        self._stopping: set[Fetch] = set()
        self._kept: dict[Request, list[HostCopy]] = {}
        self._ended: list[Ended] = []

    def __len__(self) -> int:
        """Fetches that are waited for, or have not stopped."""
        return len(self._fetches) + len(self._stopping)

    @property
    def _all(self) -> Iterable[Fetch]:
        return self._fetches.values()

    @property
    def num_kept(self) -> int:
        """Requests whose copies stay until they run."""
        return len(self._kept)

    def begin(self, request: Request, source: Source, wanted: Sequence[Wanted], num_tokens: int) -> None:
        """Have what a request wants fetched; `take_ended` has it later. Requests of one source share a fetch."""
        fetch = self._fetches.get(source)
        if fetch is not None:
            fetch.waiting.append(request)
            return
        fetch = Fetch(source, list(wanted), num_tokens, time.monotonic() + self._seconds, [request])
        self._fetches[source] = fetch
        self._go_on(fetch)

    def _go_on(self, fetch: Fetch) -> None:
        """Start a fetch that does not run, if there is room for all that is missing; end it if nothing is."""
        host = self._host
        missing = [each for each in fetch.wanted if not host.knows(*each[:2])]
        if not missing:
            # What others have begun to fetch may still be on its way.
            if all(host.has(*each[:2]) for each in fetch.wanted):
                self._end(fetch, None)
            return
        if fetch.tries == MOST_TRIES:
            self._end(fetch, "gone")
            return
        # What is here already must not go to make room for the rest.
        host.touch(digest for digest, _, _ in fetch.wanted)
        copies = self._make_room(fetch, missing)
        if copies:
            fetch.tries += 1
            fetch.copies, fetch.left, fetch.is_running = copies, {(each.digest, each.part) for each in copies}, True
            self.start(fetch)
        elif fetch.tries or not (self._kept or self._stopping or any(each.is_running for each in self._all)):
            # What a second try holds itself must not keep it waiting.
            self._end(fetch, "no_room")

    def _make_room(self, fetch: Fetch, missing: Sequence[Wanted]) -> list[HostCopy]:
        """A copy for each, or none at all."""
        describe = None if self.describe is None else self.describe(fetch.waiting[0])
        copies: list[HostCopy] = []
        for digest, part, number in missing:
            copy = self._host.begin_write(digest, part, self._size_of(part))
            if copy is None:
                for each in copies:
                    self._host.end_write(each, None)
                return []
            if describe is not None and part != self._states:
                copy.about = describe(number)
            copies.append(copy)
        return copies

    def come(self, fetch: Fetch, copy: HostCopy, checksum: int | None) -> None:
        """A copy is there, with this checksum; None: it did not come."""
        key = (copy.digest, copy.part)
        if key not in fetch.left:
            return
        fetch.left.discard(key)
        self._host.end_write(copy, checksum)
        if checksum is None:
            return
        self.num_bytes += copy.size
        if copy.state == "ready" and not fetch.is_over:
            self._kept.setdefault(fetch.waiting[0], []).append(self._host.begin_read(*key))

    def stop(self, fetch: Fetch, failure: Failure | None) -> None:
        """Nothing more comes, and nothing is written any more."""
        fetch.is_running = False
        for copy in fetch.copies:
            self.come(fetch, copy, None)
        self._stopping.discard(fetch)
        if fetch.is_over:
            return
        if failure is not None:
            self._end(fetch, failure)
        else:
            self._go_on(fetch)

    def update(self) -> None:
        """Let requests run that have waited for too long, and begin what there was no room for."""
        now = time.monotonic()
        for fetch in list(self._fetches.values()):
            if now > fetch.deadline:
                self._end(fetch, "timeout" if fetch.tries else "no_room")
            elif not fetch.is_running:
                self._go_on(fetch)

    def _end(self, fetch: Fetch, failure: Failure | None) -> None:
        """Nobody waits for a fetch any more."""
        fetch.is_over = True
        del self._fetches[fetch.source]
        if fetch.is_running:
            self._stopping.add(fetch)
        if fetch.waiting and failure is None:
            self.num_tokens += fetch.num_tokens
        elif fetch.waiting and failure is not None:
            self.num_failed[failure] = self.num_failed.get(failure, 0) + 1
        # What leads to others stays longest.
        self._host.touch(digest for digest, _, _ in reversed(fetch.wanted))
        num_tokens = fetch.num_tokens if failure is None else 0
        self._ended += [Ended(request, num_tokens, failure) for request in fetch.waiting]
        fetch.waiting = []
        self.on_end(fetch)

    def leave(self, request: Request) -> None:
        """A request has ended, or runs now."""
        for copy in self._kept.pop(request, ()):
            self._host.end_read(copy)
        for fetch in list(self._fetches.values()):
            if request in fetch.waiting:
                fetch.waiting.remove(request)
                if not fetch.waiting:
                    self._end(fetch, None)

    def take_ended(self) -> list[Ended]:
        """Requests that need not wait any more since the last call; some may have ended."""
        ended, self._ended = self._ended, []
        return ended

    def cancel(self) -> None:
        """Nobody waits any more, and copies need not stay."""
        for fetch in list(self._fetches.values()):
            self._end(fetch, "gone")
        for request in list(self._kept):
            self.leave(request)


def _nobody(fetch: Fetch) -> None:
    raise AssertionError("nobody fetches")
