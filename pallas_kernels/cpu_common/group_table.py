"""Which groups of rows there are: a table of the groups that have some, int32 [G + 1, 3].

An entry is the group's number, its first row and its first work item; the last entry has the numbers of all rows and
items. A work item is a strip of the group's matrix times a chunk of its rows.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_int32

GROUP, ROW, ITEM = range(3)
WIDTH = 3
"""Numbers of an entry."""


def make_list_groups(chunk: int) -> Any:
    """The function that writes a table, for chunks of so many rows."""

    @compiled
    def list_groups(sizes: int, groups: int, strips: int, table: int) -> int:
        """Write the table of `groups` with `sizes` rows, and `strips` for each chunk; the number of those with rows."""
        active, row, items = 0, 0, 0
        for group in range(groups):
            rows = int32(sizes, group)
            if rows > 0:
                set_int32(table, WIDTH * active + GROUP, group)
                set_int32(table, WIDTH * active + ROW, row)
                set_int32(table, WIDTH * active + ITEM, items)
                active += 1
                row += rows
                items += (rows + chunk - 1) // chunk * strips
        set_int32(table, WIDTH * active + ROW, row)
        set_int32(table, WIDTH * active + ITEM, items)
        return active

    return list_groups


@compiled
def find_entry(table: int, active: int, index: int) -> int:
    """Which of the `active` entries of a table a work item is of."""
    low, high = 0, active
    while high - low > 1:
        middle = (low + high) // 2
        if int32(table, WIDTH * middle + ITEM) <= index:
            low = middle
        else:
            high = middle
    return low
