"""The map of pages, for caches of a few pages and of more than there are cells."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxllm.engine.page_map import MOST_CELLS, map_pages
from jaxllm.kv.pages import PAGE_STATES, PagePool


def manager(pool: PagePool) -> Any:
    return SimpleNamespace(num_pages=pool.num_pages, page_states=pool.states)


def test_each_page_has_its_state() -> None:
    pool = PagePool(9)
    pages, _ = pool.take(5)
    pool.share(pages[:1])
    pool.share(pages[:1])
    pool.keep_when_idle(pages[1:4])
    pool.keep_when_idle(pages[4:], wanted=False)
    pool.release(pages[2:])
    (found,) = map_pages([manager(pool)])
    assert found.pages_per_cell == 1
    states = [PAGE_STATES[int(cell)] for cell in found.cells]
    assert states == ["shared", "held", "cached", "cached", "cached", "blank", "blank", "blank"]
    assert found.counts == {"blank": 3, "cached": 3, "held": 1, "shared": 1}
    assert map_pages([manager(PagePool(1))]) == []


def test_a_cell_is_what_most_of_its_pages_are() -> None:
    pool = PagePool(10 * MOST_CELLS + 4)
    pool.take(5 * MOST_CELLS)
    (found,) = map_pages([manager(pool)])
    assert found.pages_per_cell == 11
    assert len(found.cells) == -(-(10 * MOST_CELLS + 3) // 11) <= MOST_CELLS
    held = found.cells.rstrip("0")
    assert held == "2" * round(5 * MOST_CELLS / 11)
    assert sum(found.counts.values()) == 10 * MOST_CELLS + 3
    assert np.array_equal(np.unique(pool.states()), [0, 2])
