"""Products of activations with packed quantized matrices, one for all rows or one for each group of them.

Rows are prepared first, see `prepare`. Then work items are some blocks of outputs times a chunk of the rows of one
matrix. Few rows are bound by memory, many by arithmetic. A result is the same to the last bit whatever the rows
alongside it: sums of float32 are in one order, and those of whole numbers are exact in any.
"""

from dataclasses import replace
from typing import Any

from jaxllm.pallas_kernels.cpu_common.calls import FIRST, THREADS, Kernel, argument, result, set_scratch, size
from jaxllm.pallas_kernels.cpu_common.group_table import GROUP, ITEM, ROW, WIDTH, find_entry, make_list_groups
from jaxllm.pallas_kernels.cpu_common.memory import (
    compiled,
    fetch,
    fetch_add,
    int32,
    real,
    set_word,
    word,
    zero_bytes,
)
from jaxllm.pallas_kernels.cpu_common.vectors import HAS_AVX512
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.quantized.form import Form
from jaxllm.pallas_kernels.linear.cpu.quantized.one_row import make_one_row
from jaxllm.pallas_kernels.linear.cpu.quantized.prepare import make_prepare, meta_words
from jaxllm.pallas_kernels.linear.cpu.quantized.tiles import make_tile, make_widen
from jaxllm.pallas_kernels.linear.cpu.rows import gate, normalise

CHUNK = 64
"""Rows of an item."""
PREPARED = 8
"""Rows that are prepared at a time."""
AHEAD = 2048
"""Bytes from a weight to the one that is fetched meanwhile, where rows make a single tile."""

# Arguments of the call: x [T, in], or [T, 2 in] if it is to be gated; values [L, G * P, in / I, step]; scales and
# offsets [L, G * P, groups, 16], or [0, 0, 0, 0]; rows of each matrix int32 [G]; int32: layer, inputs, inputs of a
# group, of a segment, bias, place in `SCALE_KINDS`; float32: epsilon, unit, scale of activations or 0; weight of the
# norm [in], or [0]; what is added [T, 16 P], or [0, 0]; the table of codes, 64 bytes.
# Results: y [T, 16 P]; rows as prepared; what is known of them; the table of groups, see `group_table`.
_X, _VALUES, _SCALES, _OFFSETS, _SIZES, _INTS, _REALS, _NORM, _PLUS, _CODES = range(10)
(
    _X_ROWS, _X_STRIDE, _TO, _META, _META_STRIDE, _NORM_WEIGHT, _NUMBERS, _W, _SCALE, _OFFSET, _SCALE_KIND,
    _PLUS_ROWS, _Y, _T, _K, _P, _GROUPS, _GROUP, _SEGMENT, _BIAS, _LOOKUP, _TABLE, _ACTIVE, _PREPARES, _DONE,
) = range(FIRST, FIRST + 25)  # fmt: skip
WORDS = 25


def tile_shape(form: Form) -> tuple[int, int]:
    """Blocks and rows of a tile: as many sums as fill the registers."""
    if not HAS_AVX512:
        return 1, {0: 4, 1: 6}.get(form.digits, 2)
    if form.digits == 0:
        return (2, 8) if form.is_coded else (3, 8)
    return (3, 8) if form.digits == 1 else (2, 12 // form.digits)


_list_matrices = make_list_groups(CHUNK)


@compiled
def _describe_rows(frame: int, work: int, segments_words: int) -> None:
    """Say where rows come from, and where they go to."""
    set_word(work, _X_ROWS, argument(frame, _X))
    set_word(work, _X_STRIDE, 4 * size(frame, _X, 1))
    set_word(work, _TO, result(frame, 1))
    set_word(work, _META, result(frame, 2))
    set_word(work, _META_STRIDE, segments_words)
    set_word(work, _NORM_WEIGHT, argument(frame, _NORM) if size(frame, _NORM, 0) > 0 else 0)
    set_word(work, _NUMBERS, argument(frame, _REALS))
    set_word(work, _PLUS_ROWS, argument(frame, _PLUS) if size(frame, _PLUS, 0) > 0 else 0)
    set_word(work, _Y, result(frame, 0))


def _make_describe_weights(step_bytes: int, step_inputs: int) -> Any:
    @compiled
    def describe_weights(frame: int, work: int) -> None:
        """Say where the matrices of a layer are."""
        ints, total, groups = argument(frame, _INTS), size(frame, _VALUES, 1), size(frame, _SCALES, 2)
        layer, depth, scale_kind = int32(ints, 0), int32(ints, 1), int32(ints, 5)
        behind = layer * total * groups * BLOCK * (2 if scale_kind else 4)
        set_word(work, _W, argument(frame, _VALUES) + layer * total * (depth // step_inputs) * step_bytes)
        set_word(work, _SCALE, argument(frame, _SCALES) + behind)
        set_word(work, _OFFSET, argument(frame, _OFFSETS) + behind if size(frame, _OFFSETS, 1) > 0 else 0)
        set_word(work, _SCALE_KIND, scale_kind)
        set_word(work, _K, depth)
        set_word(work, _P, total // size(frame, _SIZES, 0))
        set_word(work, _GROUPS, groups)
        set_word(work, _GROUP, int32(ints, 2))
        set_word(work, _SEGMENT, int32(ints, 3))
        set_word(work, _BIAS, int32(ints, 4))
        set_word(work, _LOOKUP, argument(frame, _CODES))

    return describe_weights


def _make_plan(form: Form, blocks_each: int) -> Any:
    words, describe_weights = meta_words(form), _make_describe_weights(form.step_bytes, form.inputs_per_step)
    widened = replace(form, is_widened=True)
    input_bytes = blocks_each * widened.step_bytes // widened.inputs_per_step
    sums_bytes = 4 * CHUNK * blocks_each * BLOCK

    @compiled
    def plan(frame: int, work: int) -> int:
        describe_weights(frame, work)
        depth, segment, blocks = word(work, _K), word(work, _SEGMENT), word(work, _P)
        _describe_rows(frame, work, (depth + segment - 1) // segment * words)
        table, strips = result(frame, 3), (blocks + blocks_each - 1) // blocks_each
        active = _list_matrices(argument(frame, _SIZES), size(frame, _SIZES, 0), strips, table)
        rows, width = int32(table, WIDTH * active + ROW), 4 * blocks * BLOCK
        zero_bytes(result(frame, 0) + rows * width, (size(frame, _X, 0) - rows) * width)
        prepares = (rows + PREPARED - 1) // PREPARED
        set_word(work, _T, rows)
        set_word(work, _TABLE, table)
        set_word(work, _ACTIVE, active)
        set_word(work, _PREPARES, prepares)
        set_word(work, _DONE, 0)
        set_scratch(work, max(4 * depth, min(segment, depth) * input_bytes + sums_bytes) + 64)
        return prepares + int32(table, WIDTH * active + ITEM)

    return plan


def _make_prepare(form: Form) -> Any:
    prepare, x_bytes = make_prepare(form), form.digits or 4

    @compiled
    def prepare_rows(work: int, first: int, last: int, scratch: int) -> None:
        """Normalise, or gate, and cut into digits, rows from `first` up to `last`."""
        depth, norm, numbers = word(work, _K), word(work, _NORM_WEIGHT), word(work, _NUMBERS)
        stride = word(work, _X_STRIDE)
        for row in range(first, last):
            source = word(work, _X_ROWS) + row * stride
            if norm:
                normalise(scratch, source, depth, norm, numbers)
                source = scratch
            elif stride != 4 * depth:
                gate(scratch, source, depth)
                source = scratch
            to = word(work, _TO) + row * x_bytes * depth
            meta = word(work, _META) + 4 * row * word(work, _META_STRIDE)
            prepare(
                to, meta, source, depth, word(work, _SEGMENT), word(work, _BIAS), real(numbers, 1), real(numbers, 2)
            )

    return prepare_rows


def _make_tiles(form: Form, blocks: int, most: int, middle: int) -> Any:
    """Tiles of so many rows, or of one, as one function, see `tiles`."""
    many, half, one = (make_tile(form, rows, blocks) for rows in (most, middle, 1))

    @compiled
    def tile_of(
        rows: int, x: int, depth: int, w: int, w_stride: int, steps: int, meta: int, meta_stride: int, scales: int,
        offsets: int, scale_stride: int, scale_kind: int, table: int, base: int, base_stride: int, y: int,
        y_stride: int, ahead: int, pace: int, turn: int, behind: int,
    ) -> None:  # fmt: skip
        if rows == most:
            many(
                x, depth, w, w_stride, steps, meta, meta_stride, scales, offsets, scale_stride, scale_kind, table, base,
                base_stride, y, y_stride, ahead, pace, turn, behind,
            )  # fmt: skip
        elif rows == middle:
            half(
                x, depth, w, w_stride, steps, meta, meta_stride, scales, offsets, scale_stride, scale_kind, table, base,
                base_stride, y, y_stride, ahead, pace, turn, behind,
            )  # fmt: skip
        else:
            one(
                x, depth, w, w_stride, steps, meta, meta_stride, scales, offsets, scale_stride, scale_kind, table, base,
                base_stride, y, y_stride, ahead, pace, turn, behind,
            )  # fmt: skip

    return tile_of


@compiled
def _sums_of(
    work: int, row: int, column: int, own: int, width: int, is_first: bool, is_last: bool
) -> tuple[int, int, int, int]:
    """Where sums of a group are added to, and go to, each with its floats from row to row: results, or `own` ones."""
    columns = word(work, _P) * BLOCK
    behind, plus = 4 * (row * columns + column), word(work, _PLUS_ROWS)
    y, y_stride = word(work, _Y) + behind, columns
    base, base_stride = y, columns
    if is_first:
        base = plus + behind if plus else 0
    elif own:
        base, base_stride = own, width
    if own and not is_last:
        y, y_stride = own, width
    return base, base_stride, y, y_stride


@compiled
def _turn(tiles: int, left: int, then: int, step: int, length: int) -> int:
    """The step from which a single tile fetches what is `then` bytes on, as these blocks end `left` bytes from here."""
    return (left - AHEAD) // step if tiles == 1 and then else length


def _make_strip(form: Form, blocks: int, most: int, widens: bool = False) -> Any:
    """Some rows times a few blocks side by side.

    If it `widens`, weights of a group are widened once for all tiles. Sums of groups are added up side by side, as rows
    of results lie so far apart that few of them stay in the nearest cache. They are the same to the last bit.
    """
    # Few rows of several digits are many sums already.
    middle = most // 2 if form.digits < 2 else 1
    tile_form = replace(form, is_widened=widens)
    tile_of, widen = _make_tiles(tile_form, blocks, most, middle), make_widen(form, blocks)
    step, inputs, words = form.step_bytes, form.inputs_per_step, meta_words(form)
    tile_step, tile_inputs = tile_form.step_bytes, tile_form.inputs_per_step
    x_row, x_each = form.digits or 4, (1 if form.digits else 4)
    width = blocks * BLOCK

    @compiled
    def strip(work: int, block: int, first: int, last: int, column: int, then: int, scratch: int) -> None:
        """`block` is the first one in the array, whose results begin at `column`; `then` bytes on is the next strip."""
        depth, segment, groups = word(work, _K), word(work, _SEGMENT), word(work, _GROUPS)
        stride = depth // inputs * step
        tile_stride = stride
        scale_stride, scale_kind = groups * BLOCK, word(work, _SCALE_KIND)
        scale_bytes, meta_stride, table = (2 if scale_kind else 4), word(work, _META_STRIDE), word(work, _LOOKUP)
        count = (last - first + most - 1) // most
        pace = 0 if widens else (step + count - 1) // count
        sums = scratch + min(segment, depth) // tile_inputs * tile_step * blocks if widens else 0
        for begin in range(0, depth, segment):
            length = min(segment, depth - begin) // inputs
            behind = begin // inputs * step
            weights = word(work, _W) + block * stride + behind
            place = scale_bytes * ((block * groups + begin // word(work, _GROUP)) * BLOCK)
            scales, offsets = word(work, _SCALE) + place, word(work, _OFFSET)
            offsets += place if offsets else 0
            next_one = length * step if begin + segment < depth else then - behind
            if widens:
                tile_stride = length * inputs // tile_inputs * tile_step
                widen(scratch, tile_stride, weights, stride, length, table)
                weights, length, next_one = scratch, length * inputs // tile_inputs, 0
            row, tile = first, 0
            while row < last:
                x = word(work, _TO) + row * x_row * depth + begin * x_each
                meta = word(work, _META) + 4 * (row * meta_stride + begin // segment * words)
                own = sums + 4 * (row - first) * width if widens else 0
                base, base_stride, y, y_stride = _sums_of(
                    work, row, column, own, width, begin == 0, begin + segment >= depth
                )
                ahead = AHEAD if count == 1 else next_one + tile * length * pace
                rows = most if row + most <= last else middle if row + middle <= last else 1
                tile_of(
                    rows, x, depth, weights, tile_stride, length, meta, meta_stride, scales, offsets, scale_stride,
                    scale_kind, table, base, base_stride, y, y_stride, ahead, pace,
                    _turn(count, stride - behind, then, step, length), then - stride + AHEAD,
                )  # fmt: skip
                row += rows
                tile += 1

    return strip


def _make_alone(form: Form) -> Any:
    """One row times some blocks."""
    one_row, step, inputs, digits = make_one_row(form), form.step_bytes, form.inputs_per_step, form.digits

    @compiled
    def alone(work: int, block: int, row: int, blocks: int, column: int, then: int) -> None:
        """`block` is the first one in the array, whose results begin at `column`; `then` bytes on is the next strip."""
        depth, columns, plus = word(work, _K), word(work, _P) * BLOCK, word(work, _PLUS_ROWS)
        stride, behind = depth // inputs * step, 4 * (row * columns + column)
        scale_kind, offsets = word(work, _SCALE_KIND), word(work, _OFFSET)
        place = (2 if scale_kind else 4) * block * word(work, _GROUPS) * BLOCK
        x, meta = word(work, _TO) + row * digits * depth, word(work, _META) + 4 * row * word(work, _META_STRIDE)
        one_row(
            x, depth, word(work, _SEGMENT), word(work, _W) + block * stride, blocks, meta, word(work, _SCALE) + place,
            offsets + place if offsets else 0, scale_kind, word(work, _LOOKUP), plus + behind if plus else 0,
            word(work, _Y) + behind, then - blocks * stride if then else 0,
        )  # fmt: skip

    return alone


def make_kernel(form: Form) -> Kernel:
    """The kernel of a form."""
    blocks_each, rows = tile_shape(form)
    prepare_rows = _make_prepare(form)
    wide = _make_strip(form, blocks_each, rows)
    narrow = wide if blocks_each == 1 else _make_strip(form, 1, rows)
    # Others are as arithmetic wants them, but for their highest bits.
    widens = form.is_coded or not form.digits
    of_many = _make_strip(form, blocks_each, rows, True) if widens else wide
    step, inputs = form.step_bytes, form.inputs_per_step
    is_integer = form.digits > 0
    alone: Any = _make_alone(form) if is_integer else None

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        prepares, total = word(work, _PREPARES), word(work, _T)
        if index < prepares:
            prepare_rows(work, index * PREPARED, min(index * PREPARED + PREPARED, total), scratch)
            fetch_add(work, _DONE, 1)
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(work, _DONE) < prepares:
            pass
        index -= prepares
        table, blocks = word(work, _TABLE), word(work, _P)
        entry = find_entry(table, word(work, _ACTIVE), index)
        start, end = int32(table, WIDTH * entry + ROW), int32(table, WIDTH * (entry + 1) + ROW)
        chunks = (end - start + CHUNK - 1) // CHUNK
        inner = index - int32(table, WIDTH * entry + ITEM)
        block, first = inner // chunks * blocks_each, start + inner % chunks * CHUNK
        last = min(first + CHUNK, end)
        number = int32(table, WIDTH * entry + GROUP) * blocks + block
        # Threads take items in turn: how far it is to the strip that this one will have next.
        on = (word(work, THREADS) + chunks - 1) // chunks * blocks_each
        stride = word(work, _K) // inputs * step
        then = on * stride if block + on < blocks else 0
        if is_integer and last - first == 1:
            alone(work, number, first, min(blocks_each, blocks - block), block * BLOCK, then)
        elif block + blocks_each <= blocks and last - first > rows and widens:
            of_many(work, number, first, last, block * BLOCK, then, scratch)
        elif block + blocks_each <= blocks:
            wide(work, number, first, last, block * BLOCK, then, scratch)
        else:
            for each in range(blocks - block):
                narrow(work, number + each, first, last, (block + each) * BLOCK, 0, scratch)

    @compiled
    def finish(work: int) -> None:
        pass

    return Kernel(WORDS, _make_plan(form, blocks_each), item, finish)
