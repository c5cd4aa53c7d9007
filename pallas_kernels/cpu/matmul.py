"""Products of activations with weights as checkpoints have them, [out, in].

A few rows are bound by memory: every weight is read once, and the next ones are fetched ahead. Many rows are bound by
arithmetic: a block of weights stays in the second cache while all rows go by. Either way a result is the same sum in
the same order, so it does not depend on how many rows there are.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu.calls import FIRST, Kernel, argument, free, malloc, result, size
from jaxllm.pallas_kernels.cpu.memory import compiled, fetch, fetch_add, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.cpu.tiles import make_dot_tile
from jaxllm.pallas_kernels.cpu.vectors import HAS_AVX512, LANES, load, store

ROWS, COLUMNS = (8, 3) if HAS_AVX512 else (4, 3)
"""A tile: as many sums as fill the registers."""
BLOCK = 48
"""Columns of an item, a multiple of `COLUMNS`."""
DEPTH = 1024
"""Numbers of a row that are multiplied before the next block of weights; sums of longer rows are added up."""
PACK = 32
"""Rows that are put in order at a time, a multiple of `ROWS`."""
FEW = 8
"""Rows up to which weights are used for all of them at once, in place of all weights of a block for a tile of rows."""

# Arguments of the call: x [T, in], weight [out, in], rows in use int32 []. Result: [T, out].
_X, _WEIGHT, _USED = 0, 1, 2
# Words of a job.
_X_ROWS, _PACKED, _W, _Y, _T, _K, _N, _PACKS, _PACKS_DONE = range(FIRST, FIRST + 9)
WORDS = 9


@compiled
def _tile(rows: int) -> int:
    """Rows of the next tile, where `rows` are left."""
    if rows >= ROWS:
        return ROWS
    if rows >= 4:
        return 4
    return 2 if rows >= 2 else 1


@compiled
def _pack(x: int, to: int, rows: int, depth: int) -> None:
    """Rows of x in the order in which tiles read them: for each tile [depth / LANES, rows of the tile, LANES]."""
    first = 0
    while first < rows:
        tile = _tile(rows - first)
        for place in range(0, depth, LANES):
            for row in range(tile):
                store(to, 0, load(x, (first + row) * depth + place))
                to += 4 * LANES
        first += tile


@compiled
def _plan(frame: int, job: int) -> int:
    rows, depth, columns = int32(argument(frame, _USED), 0), size(frame, _X, 1), size(frame, _WEIGHT, 0)
    y = result(frame, 0)
    zero_bytes(y + 4 * rows * columns, 4 * (size(frame, _X, 0) - rows) * columns)
    packs = (rows + PACK - 1) // PACK
    set_word(job, _X_ROWS, argument(frame, _X))
    set_word(job, _PACKED, malloc(4 * rows * depth + 64))
    set_word(job, _W, argument(frame, _WEIGHT))
    set_word(job, _Y, y)
    set_word(job, _T, rows)
    set_word(job, _K, depth)
    set_word(job, _N, columns)
    set_word(job, _PACKS, packs)
    set_word(job, _PACKS_DONE, 0)
    return packs + (columns + BLOCK - 1) // BLOCK if rows else 0


@compiled
def _finish(job: int) -> None:
    free(word(job, _PACKED))


def _by_rows(columns: int) -> Any:
    """The tile of some columns for a number of rows that `_tile` gives."""
    one, two, four, most = (make_dot_tile(rows, columns) for rows in (1, 2, 4, ROWS))

    @compiled
    def tile(
        rows: int, x: int, w: int, w_stride: int, length: int, y: int, y_stride: int, more: int, ahead: int
    ) -> None:
        if rows == ROWS:
            most(x, w, w_stride, length, y, y_stride, more, ahead)
        elif rows == 4:
            four(x, w, w_stride, length, y, y_stride, more, ahead)
        elif rows == 2:
            two(x, w, w_stride, length, y, y_stride, more, ahead)
        else:
            one(x, w, w_stride, length, y, y_stride, more, ahead)

    return tile


def make_kernel() -> Kernel:
    """The kernel for float32."""
    wide, narrow = _by_rows(COLUMNS), _by_rows(1)

    @compiled
    def strip(job: int, begin: int, end: int, column: int, columns: int, depth: int) -> None:
        """Rows from `begin` up to `end` of a few columns, over a part of the depth."""
        k, n = word(job, _K), word(job, _N)
        weights = word(job, _W) + 4 * (column * k + depth)
        length = min(DEPTH, k - depth)
        # What is behind these weights is needed next. Later tiles find them in the cache.
        ahead = 0 if begin else columns * k
        first = begin
        while first < end:
            rows = _tile(end - first)
            x = word(job, _PACKED) + 4 * (first * k + depth * rows)
            y = word(job, _Y) + 4 * (first * n + column)
            if columns == COLUMNS:
                wide(rows, x, weights, k, length, y, n, 1 if depth else 0, ahead)
            else:
                narrow(rows, x, weights, k, length, y, n, 1 if depth else 0, ahead)
            ahead = 0
            first += rows

    @compiled
    def item(job: int, index: int, scratch: int) -> None:
        rows, columns, packs = word(job, _T), word(job, _N), word(job, _PACKS)
        if index < packs:
            offset = 4 * index * PACK * word(job, _K)
            _pack(
                word(job, _X_ROWS) + offset, word(job, _PACKED) + offset, min(PACK, rows - index * PACK), word(job, _K)
            )
            fetch_add(job, _PACKS_DONE, 1)
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(job, _PACKS_DONE) < packs:
            pass
        begin = (index - packs) * BLOCK
        end = min(begin + BLOCK, columns)
        step = max(rows, 1) if rows <= FEW else ROWS
        for depth in range(0, word(job, _K), DEPTH):
            for row in range(0, rows, step):
                column = begin
                while column < end:
                    width = COLUMNS if column + COLUMNS <= end else 1
                    strip(job, row, min(row + step, rows), column, width, depth)
                    column += width

    return Kernel(WORDS, _plan, item, _finish)
