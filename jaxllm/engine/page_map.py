"""A picture of the KV cache: what its pages are, in as few cells as a screen shows."""

from collections.abc import Sequence

import msgspec
import numpy as np

from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import PAGE_STATES

MOST_CELLS = 1024


class PageMap(msgspec.Struct, kw_only=True):
    """The pages of a data shard, in the order of their numbers."""

    pages_per_cell: int
    cells: str
    """For each cell a digit: the place in `PAGE_STATES` of what most of its pages are."""
    counts: dict[str, int]
    """Pages by state."""


def map_pages(shards: Sequence[KVManager]) -> list[PageMap]:
    """The maps of all data shards, between two steps."""
    return [_map(shard) for shard in shards if shard.num_pages > 1]


def _map(manager: KVManager) -> PageMap:
    states = manager.page_states()
    each = np.eye(len(PAGE_STATES), dtype=np.int32)[states]  # [pages, states]
    size = -(-len(states) // MOST_CELLS)
    begins = np.arange(0, len(states), size)
    cells = np.add.reduceat(each, begins).argmax(axis=1)
    counts = dict(zip(PAGE_STATES, each.sum(axis=0).tolist(), strict=True))
    return PageMap(pages_per_cell=size, cells="".join(map(str, cells.tolist())), counts=counts)
