"""Products of rows with the packed matrix of their group, see `linear.cpu.packed`.

Work items are some blocks of a group's matrix times a chunk of its rows. Groups without rows have none, so that their
weights are not read. Within an item it is as in `linear.cpu.matmul`: few rows are bound by memory, many by arithmetic,
and a result is the same sum in the same order whatever the rows alongside it.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.calls import FIRST, Kernel, argument, result, size
from jaxllm.pallas_kernels.cpu_common.group_table import GROUP, ITEM, ROW, WIDTH, find_entry, make_list_groups
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.matmul import CHUNK
from jaxllm.pallas_kernels.linear.cpu.strip import BLOCKS, DEPTH, make_strip

# Arguments of the call: x [R, in]; weights [L, G * P, in, 16]; sizes int32 [G]; layer int32 [1].
# Results: y [R, 16 P], and the table of groups that have rows, see `group_table`.
_X, _WEIGHT, _SIZES, _LAYER = range(4)
# Words of the work descriptor. P are the blocks of a group, and STRIPS the items they make.
_IN, _W, _Y, _K, _P, _STRIPS, _TABLE, _ACTIVE = range(FIRST, FIRST + 8)
WORDS = 8

_list_groups = make_list_groups(CHUNK)


def _make_plan(bytes_each: int) -> Any:
    @compiled
    def plan(frame: int, work: int) -> int:
        groups, depth = size(frame, _SIZES, 0), size(frame, _WEIGHT, 2)
        total, sizes, table = size(frame, _WEIGHT, 1), argument(frame, _SIZES), result(frame, 1)
        blocks = total // groups
        strips = (blocks + BLOCKS - 1) // BLOCKS
        active = _list_groups(sizes, groups, strips, table)
        row = int32(table, WIDTH * active + ROW)
        y = result(frame, 0)
        width = 4 * blocks * BLOCK
        zero_bytes(y + row * width, (size(frame, _X, 0) - row) * width)
        set_word(work, _IN, argument(frame, _X))
        set_word(
            work, _W, argument(frame, _WEIGHT) + int32(argument(frame, _LAYER), 0) * total * depth * BLOCK * bytes_each
        )
        set_word(work, _Y, y)
        set_word(work, _K, depth)
        set_word(work, _P, blocks)
        set_word(work, _STRIPS, strips)
        set_word(work, _TABLE, table)
        set_word(work, _ACTIVE, active)
        return int32(table, WIDTH * active + ITEM)

    return plan


def make_kernel(kind: str, bytes_each: int) -> Kernel:
    """The kernel for weights of a type (NumPy's name) of some bytes each."""
    wide = make_strip(kind, bytes_each, BLOCKS)
    narrow = wide if BLOCKS == 1 else make_strip(kind, bytes_each, 1)

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        table, depth, blocks = word(work, _TABLE), word(work, _K), word(work, _P)
        entry = find_entry(table, word(work, _ACTIVE), index)
        group, start = int32(table, WIDTH * entry + GROUP), int32(table, WIDTH * entry + ROW)
        rows = int32(table, WIDTH * (entry + 1) + ROW) - start
        chunks = (rows + CHUNK - 1) // CHUNK
        inner = index - int32(table, WIDTH * entry + ITEM)
        block, first = inner // chunks * BLOCKS, inner % chunks * CHUNK
        count = min(CHUNK, rows - first)
        stride, columns = depth * BLOCK * bytes_each, blocks * BLOCK
        x = word(work, _IN) + 4 * (start + first) * depth
        y = word(work, _Y) + 4 * ((start + first) * columns + block * BLOCK)
        weights = word(work, _W) + (group * blocks + block) * stride
        # The next chunk, or strip, of the matrix.
        after = min(DEPTH, depth) * BLOCK * bytes_each
        if block + BLOCKS <= blocks:
            wide(x, weights, y, 0, depth, columns, count, after)
        else:
            for each in range(blocks - block):
                narrow(x, weights + each * stride, y + 4 * each * BLOCK, 0, depth, columns, count, after)

    @compiled
    def finish(work: int) -> None:
        pass

    return Kernel(WORDS, _make_plan(bytes_each), item, finish)
