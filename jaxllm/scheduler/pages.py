"""The pages of running requests: they grow with the tokens, full ones are published, and unseen ones go back."""

import numpy as np
import numpy.typing as npt

from jaxllm.kv.groups import TableGroup
from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import NULL_PAGE, Int32Array
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable


class PageTables:
    """Keeps `RequestTable.block_table` in step with the tokens."""

    def __init__(self, table: RequestTable, pages: KVManager) -> None:
        self._table, self._pages = table, pages
        self._groups = list(zip(table.groups.all, table.begins, table.ends, strict=True))
        self._first_columns = np.arange(table.groups.num_tables) * table.width
        self._margin = table.groups.margin
        self.gives_back = table.groups.gives_back
        """Whether an `update` may free pages of requests that go on."""

    def grow(self, slots: Int32Array, counts: Int32Array) -> bool:
        """Give each row the pages its new tokens need; False, and no change, when there are not enough."""
        table, size = self._table, self._pages.block_size
        ends = table.num_computed[slots] + counts
        growing: list[tuple[TableGroup, Int32Array, Int32Array, Int32Array, Int32Array]] = []
        total = 0
        for group, _, ends_held in self._groups:
            rows = np.flatnonzero(ends > ends_held[slots] * size)
            if len(rows):
                held, needed = ends_held[slots[rows]], -(-ends[rows] // size)
                growing.append((group, ends_held, slots[rows], held, needed))
                total += int((needed - held).sum()) * group.count
        if not total:
            return True
        pages = self._pages.grow(total)
        if pages is None:
            return False
        for group, ends_held, which, held, needed in growing:
            places, columns = ranges(which, held, needed)
            for number in group.tables:
                own, pages = pages[: len(places)], pages[len(places) :]
                table.block_table[places, columns + number * table.width] = own
            ends_held[which] = needed
        return True

    def publish(self, plan: StepPlan, live: npt.NDArray[np.bool_]) -> None:
        """Let other requests find the pages that this step has filled."""
        if not self._pages.enable_prefix_caching:
            return
        table, size = self._table, self._pages.block_size
        ends = plan.starts + plan.num_new_tokens
        first, last = plan.starts // size, ends // size
        filled = np.where(live, last - first, 0)
        if (rows := np.flatnonzero(filled == 1)).size:
            self._publish_one_each(plan, rows, first[rows])
        for row in np.flatnonzero(filled > 1).tolist():
            slot, start, end = (int(each[row]) for each in (plan.slots, plan.starts, ends))
            self._pages.publish(plan.requests[row], table.token_ids[slot], table.block_table[slot], start, end)

    def _publish_one_each(self, plan: StepPlan, rows: npt.NDArray[np.intp], numbers: Int32Array) -> None:
        """The pages of these rows that were filled, one of each, gathered at once."""
        table, size = self._table, self._pages.block_size
        slots, columns = plan.slots[rows, None], numbers[:, None]
        tokens = table.token_ids[slots, columns * size + np.arange(size)]
        pages = table.block_table[slots, columns + self._first_columns]
        requests = [plan.requests[row] for row in rows.tolist()]
        self._pages.publish_one_each(requests, numbers.tolist(), tokens, pages)

    def give_back(self, plan: StepPlan, live: npt.NDArray[np.bool_]) -> None:
        """Free the pages that no token after those of this step can see.

        Steps that were scheduled after it may still be on their way, but they are after it.
        """
        if not self.gives_back:
            return
        table, size = self._table, self._pages.block_size
        ends = plan.starts + plan.num_new_tokens
        freed: list[Int32Array] = []
        for group, begins_held, _ in self._groups:
            if not group.window:
                continue
            begins = np.maximum(ends - (group.window - 1 + self._margin * size), 0) // size
            rows = np.flatnonzero((begins > begins_held[plan.slots]) & live)
            if not len(rows):
                continue
            slots = plan.slots[rows]
            places, columns = ranges(slots, begins_held[slots], begins[rows])
            for number in group.tables:
                entries = places, columns + number * table.width
                freed.append(table.block_table[entries])
                table.block_table[entries] = NULL_PAGE
            begins_held[slots] = begins[rows]
        if freed:
            self._pages.release_some(np.concatenate(freed))


def ranges(slots: Int32Array, begins: Int32Array, ends: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Each slot as often as there are pages from `begins` to `ends`, and these pages."""
    counts = ends - begins
    if counts.max() == 1:
        return slots, begins
    columns = np.arange(counts.sum(), dtype=np.int32) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return np.repeat(slots, counts), columns.astype(np.int32)
