"""The host tier of a prefix cache: copies, what is to be copied, and what is on its way back."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxllm.kv.tiers.host_pool import HostPool
from jaxllm.kv.tiers.loads import Loads
from jaxllm.kv.tiers.stores import Stores


@dataclass(frozen=True)
class Tier:
    """Its parts. One thread calls all of them."""

    host: HostPool
    stores: Stores
    loads: Loads

    def used(self, digests: Sequence[bytes]) -> None:
        """A request with these pages leaves: those that lead to others are evicted after them."""
        self.host.touch(reversed(digests))

    def clear(self) -> None:
        """Forget everything, and what is on its way."""
        self.loads.cancel()
        self.stores.clear()
        self.host.clear()
