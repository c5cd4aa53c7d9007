"""The KV pages of several data shards, as one looks at them from outside."""

from collections.abc import Sequence

from jaxllm.kv.events import KVEvents
from jaxllm.kv.lifetimes import PageLife
from jaxllm.kv.manager import KVManager
from jaxllm.kv.snapshots import SnapshotPool


class ShardedPages:
    """Counts what the shards' managers have together."""

    snapshots: SnapshotPool | None = None

    def __init__(self, shards: Sequence[KVManager]) -> None:
        self.shards = tuple(shards)

    @property
    def num_held_pages(self) -> int:
        """Pages that running requests hold."""
        return sum(shard.num_held_pages for shard in self.shards)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of a request fill, in one table."""
        return self.shards[0].pages_for(num_tokens)

    @property
    def usage(self) -> float:
        """Share of the pages that running requests hold, 0 to 1."""
        return sum(shard.usage for shard in self.shards) / len(self.shards)

    @property
    def prefix_queries(self) -> int:
        """Prompt tokens looked up in the prefix caches."""
        return sum(shard.prefix_queries for shard in self.shards)

    @property
    def prefix_hits(self) -> int:
        """Prompt tokens found there."""
        return sum(shard.prefix_hits for shard in self.shards)

    def watch_lifetimes(self, share: float) -> None:
        """See `KVManager.watch_lifetimes`."""
        for shard in self.shards:
            shard.watch_lifetimes(share)

    def take_lives(self) -> tuple[PageLife, ...]:
        """See `KVManager.take_lives`."""
        return tuple(life for shard in self.shards for life in shard.take_lives())

    def record(self, events: KVEvents) -> None:
        """See `KVManager.record`: a page that several shards have is noted for each of them."""
        for shard in self.shards:
            shard.record(events)

    def use_weights(self, version: int) -> None:
        """See `KVManager.use_weights`."""
        for shard in self.shards:
            shard.use_weights(version)
