"""The host tier of a prefix cache: copies, what is to be copied, and what is on its way back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxllm.kv.events import KVEvents
from jaxllm.kv.tiers.fetches import Fetches
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool
from jaxllm.kv.tiers.leases import Leases
from jaxllm.kv.tiers.loads import Loads
from jaxllm.kv.tiers.promotions import Files, Promotions
from jaxllm.kv.tiers.stores import Stores
from jaxllm.requests.request import Request


@dataclass
class Tier:
    """Its parts. One thread calls all of them."""

    host: HostPool
    stores: Stores
    loads: Loads
    promotions: Promotions | None = None
    """What comes from files, if there are any."""
    events: KVEvents | None = None
    """Where it is noted what there are copies of, if anywhere."""
    leases: Leases | None = None
    """What is kept for other engines, if there are any."""
    fetches: Fetches | None = None
    """What comes from other engines, if there are any."""
    on_used: Callable[[Sequence[bytes]], None] | None = None
    """Hears of digests that were used, the last one last, if anybody is to."""

    def use_files(self, files: Files) -> Promotions:
        """Find copies in files as well."""
        self.promotions = Promotions(self.host, files)
        self.loads.use_files(self.promotions)
        if self.events is not None:
            self.promotions.describe = self.events.describe
        return self.promotions

    def record(self, events: KVEvents) -> None:
        """Note from now on what there are copies of, and what no more."""
        self.events = events
        events.remember()
        self.stores.describe = events.about
        self.host.on_ready = lambda copy: events.copied("CPU", copy.part, copy.digest, copy.about)
        self.host.on_gone = lambda copy: events.copy_gone("CPU", copy.part, copy.digest)
        if self.promotions is not None:
            self.promotions.describe = events.describe
        if self.fetches is not None:
            self.fetches.describe = events.describe

    def use_fetches(self, fetches: Fetches) -> None:
        """Find copies in other engines as well."""
        self.fetches = fetches
        if self.events is not None:
            fetches.describe = self.events.describe

    def note_files(self, written: Iterable[HostCopy], gone: Iterable[tuple[bytes, int]]) -> None:
        """Note what has got files, and digests and parts whose files are gone."""
        if self.events is None:
            return
        for copy in written:
            self.events.copied("STORAGE", copy.part, copy.digest, copy.about)
        for digest, part in gone:
            self.events.copy_gone("STORAGE", part, digest)

    @property
    def is_waiting(self) -> bool:
        """Whether anything is on its way to the devices."""
        others = (self.promotions, self.fetches)
        return len(self.loads) > 0 or any(each is not None and len(each) > 0 for each in others)

    def take_released(self) -> list[Request]:
        """Requests that need not wait any more since the last call; some may have ended."""
        return self.loads.take_released() + ([] if self.promotions is None else self.promotions.take_released())

    def used(self, digests: Sequence[bytes]) -> None:
        """A request with these pages leaves: those that lead to others are evicted after them."""
        self.host.touch(reversed(digests))
        if self.on_used is not None:
            self.on_used(digests[::-1])

    def cancel(self) -> None:
        """Nobody waits any more, and the pages of loads and leases are given back."""
        self.loads.cancel()
        for each in (self.promotions, self.leases, self.fetches):
            if each is not None:
                each.cancel()

    def clear(self) -> None:
        """Forget everything, and what is on its way; files stay."""
        self.cancel()
        self.stores.clear()
        self.host.clear()
