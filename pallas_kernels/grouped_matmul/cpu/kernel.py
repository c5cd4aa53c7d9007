"""Products of rows with the packed matrix of their group, see `linear.cpu.packed`.

Work items are some blocks of a group's matrix times a chunk of its rows. Groups without rows have none, so that their
weights are not read. Within an item it is as in `linear.cpu.matmul`: few rows are bound by memory, many by arithmetic,
and a result is the same sum in the same order whatever the rows beside it.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.calls import FIRST, Kernel, argument, result, size
from jaxllm.pallas_kernels.cpu_common.group_table import GROUP, ITEM, ROW, WIDTH, find_entry, make_list_groups
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.matmul import AHEAD, BLOCKS, CHUNK, DEPTH, ROWS
from jaxllm.pallas_kernels.linear.cpu.tiles import make_block_tile

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


def _make_strip(kind: str, bytes_each: int, blocks: int) -> Any:
    """Some rows times a few blocks side by side: from `x` and `weights` to `y`, which has `columns`."""
    many, half, one = (make_block_tile(rows, blocks, kind) for rows in (ROWS, ROWS // 2, 1))
    step = BLOCK * bytes_each

    @compiled
    def strip(x: int, weights: int, y: int, depth: int, columns: int, rows: int) -> None:
        stride = depth * step
        tiles = (rows + ROWS - 1) // ROWS
        for begin in range(0, depth, DEPTH):
            length, more = min(DEPTH, depth - begin), 1 if begin else 0
            pace = (step + tiles - 1) // tiles
            row, tile = 0, 0
            while row < rows:
                place = x + 4 * (row * depth + begin)
                to = y + 4 * row * columns
                here = weights + begin * step
                count = 1
                ahead = AHEAD if tiles == 1 else min(DEPTH, depth) * step + tile * length * pace
                if row + ROWS <= rows:
                    count = ROWS
                    many(place, depth, here, stride, length, to, columns, more, ahead, pace)
                elif row + ROWS // 2 <= rows:
                    count = ROWS // 2
                    half(place, depth, here, stride, length, to, columns, more, ahead, pace)
                else:
                    one(place, depth, here, stride, length, to, columns, more, ahead, pace)
                row += count
                tile += 1

    return strip


def make_kernel(kind: str, bytes_each: int) -> Kernel:
    """The kernel for weights of a type (NumPy's name) of some bytes each."""
    wide = _make_strip(kind, bytes_each, BLOCKS)
    narrow = wide if BLOCKS == 1 else _make_strip(kind, bytes_each, 1)

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
        if block + BLOCKS <= blocks:
            wide(x, weights, y, depth, columns, count)
        else:
            for each in range(blocks - block):
                narrow(x, weights + each * stride, y + 4 * each * BLOCK, depth, columns, count)

    @compiled
    def finish(work: int) -> None:
        pass

    return Kernel(WORDS, _make_plan(bytes_each), item, finish)
