"""The pages of running requests: they grow with the tokens, and full ones are published."""

import numpy as np
import numpy.typing as npt

from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable


class PageTables:
    """Keeps `RequestTable.block_table` in step with the tokens."""

    def __init__(self, table: RequestTable, pages: KVManager) -> None:
        self._table, self._pages = table, pages

    def grow(self, slots: Int32Array, counts: Int32Array) -> bool:
        """Give each row the pages its new tokens need; False, and no change, when there are not enough."""
        table, size = self._table, self._pages.block_size
        ends = table.num_computed[slots] + counts
        rows = np.flatnonzero(ends > table.num_pages[slots] * size)
        if not len(rows):
            return True
        slots, needed = slots[rows], -(-ends[rows] // size)
        held = table.num_pages[slots]
        missing = needed - held
        pages = self._pages.grow(int(missing.sum()))
        if pages is None:
            return False
        columns = np.arange(len(pages)) - np.repeat(np.cumsum(missing) - missing, missing) + np.repeat(held, missing)
        table.block_table[np.repeat(slots, missing), columns] = pages
        table.num_pages[slots] = needed
        return True

    def publish(self, plan: StepPlan, live: npt.NDArray[np.bool_]) -> None:
        """Let other requests find the pages that this step has filled."""
        if not self._pages.enable_prefix_caching:
            return
        table, size = self._table, self._pages.block_size
        ends = plan.starts + plan.num_new_tokens
        filled = (plan.starts // size != ends // size) & live
        for row in np.flatnonzero(filled).tolist():
            slot = int(plan.slots[row])
            self._pages.publish(
                plan.requests[row],
                table.token_ids[slot],
                table.block_table[slot],
                int(plan.starts[row]),
                int(ends[row]),
            )
