"""Some rows times a few packed blocks side by side, whose weights are read once for all of them."""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.bfloat16 import load_narrow, store_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled
from jaxllm.pallas_kernels.cpu_common.vectors import HAS_AVX512, LANES, add, load, store
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import Form
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


@compiled
def _write(y: int, plus: int, sums: int, rows: int, stride: int, columns: int, is_narrow: int) -> None:
    """Write `sums` [rows, columns], plus `plus`, as bfloat16 or float32."""
    for row in range(rows):
        for column in range(0, columns, LANES):
            place, total = row * stride + column, load(sums, row * columns + column)
            if is_narrow:
                store_narrow(y, place, add(total, load_narrow(plus, place)) if plus else total)
            else:
                store(y, place, add(total, load(plus, place)) if plus else total)


def _make_tiles(form: Form, blocks: int) -> Any:
    """Tiles as one function, which says how many of the rows that are left it computes."""
    many, half, one = (make_block_tile(rows, blocks, form) for rows in (ROWS, ROWS // 2, 1))

    @compiled
    def tile(
        left: int, x: int, stride: int, w: int, w_stride: int, steps: int, y: int, y_stride: int, more: int,
        ahead: int, pace: int,
    ) -> int:  # fmt: skip
        if left >= ROWS:
            many(x, stride, w, w_stride, steps, y, y_stride, more, ahead, pace)
            return ROWS
        if left >= ROWS // 2:
            half(x, stride, w, w_stride, steps, y, y_stride, more, ahead, pace)
            return ROWS // 2
        one(x, stride, w, w_stride, steps, y, y_stride, more, ahead, pace)
        return 1

    return tile


def make_strip(form: Form, blocks: int) -> Any:
    """The function of a form for so many blocks."""
    tile_of = _make_tiles(form, blocks)
    is_native, x_bytes, inputs, step = form.is_native, form.row_bytes, form.inputs_per_step, form.step_bytes
    width = blocks * BLOCK

    @compiled
    def strip(
        x: int, weights: int, y: int, plus: int, depth: int, columns: int, count: int, after: int, sums: int,
        is_narrow: int,
    ) -> None:  # fmt: skip
        """`count` rows of `x` [count, depth] to `y`, whose rows have `columns`, as those of `plus`, unless it is 0.

        `after` bytes from the last `DEPTH` inputs of `weights`, or fewer, lies what is fetched meanwhile. A native form
        has sums in `sums` [count, blocks * BLOCK], float32, and if `is_narrow`, `y` and `plus` are bfloat16.
        """
        stride = depth // inputs * step
        y_bytes = 2 if is_native and is_narrow else 4
        tiles = (count + ROWS - 1) // ROWS
        pace = (step + tiles - 1) // tiles
        for begin in range(0, depth, DEPTH):
            length, more = min(DEPTH, depth - begin) // inputs, 1 if begin else 0
            is_last = begin + DEPTH >= depth
            here = weights + begin // inputs * step
            # How far it is to what comes next: the rest of these blocks, or what the caller reads then.
            then = after if is_last else DEPTH // inputs * step
            row, tile = 0, 0
            while row < count:
                place = y_bytes * row * columns
                source = x + x_bytes * (row * depth + begin)
                ahead = AHEAD if tiles == 1 else then + tile * length * pace
                to = sums + 4 * row * width if is_native else y + place
                to_stride = width if is_native else columns
                rows = tile_of(
                    count - row, source, depth * x_bytes // 4, here, stride, length, to, to_stride, more, ahead, pace
                )
                if is_last and is_native:
                    _write(y + place, plus + place if plus else 0, to, rows, columns, width, is_narrow)
                elif is_last and plus:
                    _add(y + place, plus + place, rows, columns, width)
                row += rows
                tile += 1

    return strip
