"""Low-rank products of rows, each with the matrices of its slot, added in place.

Rows are sorted by slot. A work item is a chunk of rows of one slot: it multiplies with `down`, keeps what comes of it
in memory of its thread, and multiplies that with `up`. A call without rows that have an adapter has no items. Rows of
zeros at the end of `down` are what an adapter of a lower rank, or one without this layer, leaves empty: they are found,
and not multiplied. Every sum has one order, so that a result depends on the row and its adapter alone.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.bfloat16 import load_narrow
from jaxllm.pallas_kernels.cpu_common.calls import (
    FIRST,
    THREADS,
    Kernel,
    argument,
    free,
    malloc,
    result,
    set_scratch,
    size,
)
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.cpu_common.vectors import HAS_AVX512, LANES, store
from jaxllm.pallas_kernels.linear.cpu.rows import gate, make_gate, make_normalise, normalise
from jaxllm.pallas_kernels.low_rank.cpu.tiles import make_down_tile, make_up_tile

ROWS, COLUMNS, VECTORS = (4, 4, 4) if HAS_AVX512 else (2, 4, 4)
"""Tiles: rows, sums of `down` for each row, and vectors of sums of `up`."""
LARGEST_CHUNK = 32
"""Rows of an item, at most."""

# Arguments of the call: base [T, out], which is the result too; x [T, in], or [T, 2 in] if it is to be gated;
# down [L, S, P * Q, in]; up [L, S, Q, out]; int32 [T]: slots, -1 for none; int32 [1]: 0 if no row has one;
# int32 [1]: layer; int32 [P]: outputs of each part; weight of the norm [in], or [0] for none; its epsilon [1];
# int32 [1]: 1 if base is bfloat16.
_BASE, _X, _DOWN, _UP, _SLOTS, _USED, _LAYER, _SIZES, _NORM, _EPSILON, _NARROW = range(11)
# Words of the work descriptor. ORDER are rows, sorted by slot; ITEMS begin in it: a slot, a first place, a number.
_IN, _WIDTH, _NORM_WEIGHT, _EPS, _Y, _D, _U, _K, _O, _Q, _P, _PARTS, _TABLE, _ORDER, _ITEMS, _Y_BYTES = range(
    FIRST, FIRST + 16
)
WORDS = 16


@compiled
def _sort(work: int, slots: int, rows: int, count: int) -> int:
    """Sort `rows` rows by their slots, out of `count` slots, and list the items; returns how many items there are."""
    table = malloc(8 * (count + 1 + 4 * rows))
    order = table + 8 * (count + 1)
    items = order + 8 * rows
    set_word(work, _TABLE, table)
    set_word(work, _ORDER, order)
    set_word(work, _ITEMS, items)
    zero_bytes(table, 8 * (count + 1))
    total = 0
    for row in range(rows):
        slot = int32(slots, row)
        if slot >= 0:
            set_word(table, slot, word(table, slot) + 1)
            total += 1
    # Enough chunks for all threads, of whole tiles; a result does not depend on them.
    parts = 2 * max(1, word(work, THREADS))
    chunk = min(LARGEST_CHUNK, ((total + parts - 1) // parts + 3) // 4 * 4)
    begin, found = 0, 0
    for slot in range(count):
        own = word(table, slot)
        set_word(table, slot, begin)
        for first in range(0, own, chunk):
            set_word(items, 3 * found, slot)
            set_word(items, 3 * found + 1, begin + first)
            set_word(items, 3 * found + 2, min(chunk, own - first))
            found += 1
        begin += own
    for row in range(rows):
        slot = int32(slots, row)
        if slot >= 0:
            place = word(table, slot)
            set_word(order, place, row)
            set_word(table, slot, place + 1)
    return found


def _make_plan(bytes_each: int) -> Any:
    @compiled
    def plan(frame: int, work: int) -> int:
        set_word(work, _TABLE, 0)
        if int32(argument(frame, _USED), 0) == 0:
            return 0
        layer, slots, depth = int32(argument(frame, _LAYER), 0), size(frame, _UP, 1), size(frame, _DOWN, 3)
        rank, outputs, parts = size(frame, _UP, 2), size(frame, _UP, 3), size(frame, _SIZES, 0)
        is_normed = size(frame, _NORM, 0) > 0
        set_word(work, _IN, argument(frame, _X))
        set_word(work, _WIDTH, size(frame, _X, 1))
        set_word(work, _NORM_WEIGHT, argument(frame, _NORM) if is_normed else 0)
        set_word(work, _EPS, argument(frame, _EPSILON))
        set_word(work, _Y, result(frame, 0))
        set_word(work, _Y_BYTES, 2 if int32(argument(frame, _NARROW), 0) else 4)
        set_word(work, _D, argument(frame, _DOWN) + layer * slots * parts * rank * depth * bytes_each)
        set_word(work, _U, argument(frame, _UP) + layer * slots * rank * outputs * bytes_each)
        set_word(work, _K, depth)
        set_word(work, _O, outputs)
        set_word(work, _Q, rank)
        set_word(work, _P, parts)
        set_word(work, _PARTS, argument(frame, _SIZES))
        # Addresses of rows, what `down` makes of them, and the rows as prepared.
        set_scratch(work, LARGEST_CHUNK * (16 + 4 * rank + 4 * depth))
        return _sort(work, argument(frame, _SLOTS), size(frame, _BASE, 0), slots)

    return plan


@compiled
def _widen(to: int, row: int, size: int) -> None:
    """`size` bfloat16 as float32."""
    for place in range(0, size, LANES):
        store(to, place, load_narrow(row, place))


def _make_find_rows(is_narrow: bool) -> Any:
    """For activations that are bfloat16 if `is_narrow`, else float32."""
    x_bytes, scale, silu = 4, normalise, gate
    if is_narrow:
        x_bytes, scale, silu = 2, make_normalise(load_narrow, store), make_gate(load_narrow, store)

    @compiled
    def find_rows(work: int, first: int, count: int, xs: int, ys: int, prepared: int) -> None:
        """Write down the addresses of `count` rows of an item, and those of their results; prepare them, if need be."""
        depth, width, norm = word(work, _K), word(work, _WIDTH), word(work, _NORM_WEIGHT)
        for index in range(count):
            row = word(word(work, _ORDER), first + index)
            source, to = word(work, _IN) + x_bytes * row * width, prepared + 4 * index * depth
            set_word(ys, index, word(work, _Y) + word(work, _Y_BYTES) * row * word(work, _O))
            if norm:
                scale(to, source, depth, norm, word(work, _EPS))
            elif width != depth:
                silu(to, source, depth)
            elif is_narrow:
                _widen(to, source, depth)
            else:
                to = source
            set_word(xs, index, to)

    return find_rows


@compiled
def _used_rank(matrix: int, rank: int, row_bytes: int) -> int:
    """How many of `rank` rows are left without the rows of zeros at the end."""
    while rank > 0:
        row = matrix + (rank - 1) * row_bytes
        for place in range(0, row_bytes // 8, 4):
            if word(row, place) | word(row, place + 1) | word(row, place + 2) | word(row, place + 3):
                return rank
        rank -= 1
    return 0


def _make_down(kind: str, bytes_each: int) -> Any:
    """Some rows times the first `rank` rows of `down`."""
    many, tall, wide, one = (make_down_tile(r, c, kind) for r in (ROWS, 1) for c in (COLUMNS, 1))

    @compiled
    def multiply(xs: int, count: int, matrix: int, depth: int, rank: int, hidden: int, stride: int) -> None:
        column = 0
        while column < rank:
            is_whole = column + COLUMNS <= rank
            row, weights = 0, matrix + column * depth * bytes_each
            while row < count:
                to, source = hidden + 4 * (row * stride + column), xs + 8 * row
                if row + ROWS <= count:
                    if is_whole:
                        many(source, weights, depth, to, stride)
                    else:
                        tall(source, weights, depth, to, stride)
                    row += ROWS
                else:
                    if is_whole:
                        wide(source, weights, depth, to, stride)
                    else:
                        one(source, weights, depth, to, stride)
                    row += 1
            column += COLUMNS if is_whole else 1

    return multiply


def _make_up(kind: str, bytes_each: int, to: str) -> Any:
    """What `down` has made of some rows times columns of `up`, added to the rows, which are of type `to`."""
    many, tall, wide, one = (make_up_tile(r, v, kind, to) for r in (ROWS, 1) for v in (VECTORS, 1))

    @compiled
    def multiply(
        hidden: int, stride: int, count: int, matrix: int, outputs: int, rank: int, ys: int, begin: int, end: int
    ) -> None:
        column = begin
        while column < end:
            is_whole = column + VECTORS * LANES <= end
            row, weights = 0, matrix + column * bytes_each
            while row < count:
                source, place = hidden + 4 * row * stride, ys + 8 * row
                if row + ROWS <= count:
                    if is_whole:
                        many(source, stride, weights, outputs, rank, place, column)
                    else:
                        tall(source, stride, weights, outputs, rank, place, column)
                    row += ROWS
                else:
                    if is_whole:
                        wide(source, stride, weights, outputs, rank, place, column)
                    else:
                        one(source, stride, weights, outputs, rank, place, column)
                    row += 1
            column += VECTORS * LANES if is_whole else LANES

    return multiply


def make_kernel(kind: str, bytes_each: int, *, is_narrow: bool) -> Kernel:
    """The kernel for matrices of a type (NumPy's name) of some bytes each.

    Activations are bfloat16 if `is_narrow`, which takes AVX512-BF16, and what is added to is bfloat16 or float32. Else
    both are float32.
    """
    multiply_down, add_wide = _make_down(kind, bytes_each), _make_up(kind, bytes_each, "float32")
    add_narrow = _make_up(kind, bytes_each, "bfloat16") if is_narrow else add_wide
    find_rows = _make_find_rows(is_narrow)

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        entry = word(work, _ITEMS) + 24 * index
        slot, first, count = word(entry, 0), word(entry, 1), word(entry, 2)
        depth, rank, outputs, parts = word(work, _K), word(work, _Q), word(work, _O), word(work, _P)
        xs, ys, hidden = scratch, scratch + 8 * LARGEST_CHUNK, scratch + 16 * LARGEST_CHUNK
        row_bytes = depth * bytes_each
        up = word(work, _U) + slot * rank * outputs * bytes_each
        begin, is_ready = 0, False
        for part in range(parts):
            down = word(work, _D) + (slot * parts + part) * rank * row_bytes
            end = begin + int32(word(work, _PARTS), part)
            used = _used_rank(down, rank, row_bytes)
            if used > 0:
                if not is_ready:
                    find_rows(work, first, count, xs, ys, hidden + 4 * LARGEST_CHUNK * rank)
                    is_ready = True
                multiply_down(xs, count, down, depth, used, hidden, rank)
                if word(work, _Y_BYTES) == 2:
                    add_narrow(hidden, rank, count, up, outputs, used, ys, begin, end)
                else:
                    add_wide(hidden, rank, count, up, outputs, used, ys, begin, end)
            begin = end

    @compiled
    def finish(work: int) -> None:
        if word(work, _TABLE):
            free(word(work, _TABLE))

    return Kernel(WORDS, _make_plan(bytes_each), item, finish)
