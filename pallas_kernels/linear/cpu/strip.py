"""Some rows times a few packed blocks side by side, whose weights are read once for all of them."""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.memory import compiled
from jaxllm.pallas_kernels.cpu_common.vectors import HAS_AVX512, LANES, add, load, store
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.tiles import make_block_tile

BLOCKS, ROWS = (3, 8) if HAS_AVX512 else (1, 6)
"""A tile: as many sums as fill the registers."""
DEPTH = 1024
"""Inputs of a chain of products; longer sums are added up of several, which is more exact."""
AHEAD = 4096
"""Bytes from a weight to the one that is fetched meanwhile, where rows make a single tile."""


@compiled
def _add(y: int, plus: int, rows: int, stride: int, columns: int) -> None:
    """Add `plus` to some columns of `rows` rows."""
    for row in range(rows):
        for column in range(row * stride, row * stride + columns, LANES):
            store(y, column, add(load(y, column), load(plus, column)))


def make_strip(kind: str, bytes_each: int, blocks: int) -> Any:
    """The function for weights of a type (NumPy's name) of some bytes each, in so many blocks."""
    many, half, one = (make_block_tile(rows, blocks, kind) for rows in (ROWS, ROWS // 2, 1))
    step = BLOCK * bytes_each

    @compiled
    def strip(x: int, weights: int, y: int, plus: int, depth: int, columns: int, count: int, after: int) -> None:
        """`count` rows of `x` [count, depth] to `y`, whose rows have `columns`, as those of `plus`, unless it is 0.

        `after` bytes from the last `DEPTH` inputs of `weights`, or fewer, lies what is fetched meanwhile.
        """
        stride = depth * step
        tiles = (count + ROWS - 1) // ROWS
        for begin in range(0, depth, DEPTH):
            length, more = min(DEPTH, depth - begin), 1 if begin else 0
            here = weights + begin * step
            # How far it is to what comes next: the rest of these blocks, or what the caller reads then.
            then = DEPTH * step if begin + DEPTH < depth else after
            pace = (step + tiles - 1) // tiles
            row, tile = 0, 0
            while row < count:
                place = 4 * row * columns
                source, to, rows = x + 4 * (row * depth + begin), y + place, 1
                ahead = AHEAD if tiles == 1 else then + tile * length * pace
                if row + ROWS <= count:
                    rows = ROWS
                    many(source, depth, here, stride, length, to, columns, more, ahead, pace)
                elif row + ROWS // 2 <= count:
                    rows = ROWS // 2
                    half(source, depth, here, stride, length, to, columns, more, ahead, pace)
                else:
                    one(source, depth, here, stride, length, to, columns, more, ahead, pace)
                if plus and begin + length == depth:
                    _add(to, plus + place, rows, columns, blocks * BLOCK)
                row += rows
                tile += 1

    return strip
