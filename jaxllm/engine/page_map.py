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
    size = -(-len(states) // MOST_CELLS)
    num_cells, kinds = -(-len(states) // size), len(PAGE_STATES)
    # A number for each cell and state: one pass over the pages counts how often it comes.
    places = np.repeat(np.arange(0, num_cells * kinds, kinds), size)[: len(states)] + states
    each = np.bincount(places, minlength=num_cells * kinds).reshape(num_cells, kinds)
    cells = (each.argmax(axis=1) + ord("0")).astype(np.uint8).tobytes().decode()
    counts = dict(zip(PAGE_STATES, each.sum(axis=0).tolist(), strict=True))
    return PageMap(pages_per_cell=size, cells=cells, counts=counts)
