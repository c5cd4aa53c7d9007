"""The inner loops of low-rank products: tiles of sums that stay in registers.

Rows of tokens with one adapter are anywhere in memory, so that tiles take addresses of rows.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.bfloat16 import emit_store_narrow
from jaxllm.pallas_kernels.cpu_common.tiles import Tile
from jaxllm.pallas_kernels.cpu_common.vectors import (
    FLOAT,
    LANES,
    WORD,
    emit_fma,
    emit_folds,
    emit_load,
    emit_prefetch,
    emit_store,
    multiples,
    number,
    operation,
    pointer,
)

BYTES = {"float32": 4, "bfloat16": 2}
"""Of a number of each type that matrices have."""


def make_down_tile(rows: int, columns: int, kind: str) -> Any:
    """`f(xs, w, length, y, y_stride)`: `y[r, c] = sum_k x_r[k] w[c, k]`.

    At `xs` lie the addresses of `rows` rows of float32. `w` are `columns` rows of `length` numbers of type `kind`, and
    `length` a multiple of `LANES`. A result is one chain of products for each lane, then a fold of the lanes, whatever
    the tile.
    """

    def emit(
        builder: ir.IRBuilder, xs: ir.Value, w: ir.Value, length: ir.Value, y: ir.Value, y_stride: ir.Value
    ) -> None:
        totals = [cgutils.alloca_once_value(builder, number(0.0)) for _ in range(rows * columns)]
        x_rows = [builder.load(pointer(builder, xs, ir.Constant(WORD, row), WORD)) for row in range(rows)]
        starts = multiples(builder, length, columns)
        with cgutils.for_range(builder, builder.udiv(length, ir.Constant(WORD, LANES))) as loop:
            place = builder.mul(loop.index, ir.Constant(WORD, LANES))
            weights = [emit_load(builder, w, builder.add(start, place), kind) for start in starts]
            for start in starts:
                ahead = builder.add(builder.add(start, multiples(builder, length, columns + 1)[-1]), place)
                emit_prefetch(builder, pointer(builder, w, ahead, ir.IntType(8 * BYTES[kind])))
            for row, address in enumerate(x_rows):
                x = emit_load(builder, address, place)
                for column, weight in enumerate(weights):
                    total = totals[row * columns + column]
                    builder.store(emit_fma(builder, x, weight, builder.load(total)), total)
        sums = iter(emit_folds(builder, [builder.load(total) for total in totals], builder.fadd))
        for start in multiples(builder, y_stride, rows):
            for column in range(columns):
                to = pointer(builder, y, builder.add(start, ir.Constant(WORD, column)), FLOAT)
                builder.store(next(sums), to)

    return operation(types.void, (types.intp,) * 5, emit)


def make_up_tile(rows: int, vectors: int, kind: str, to_kind: str) -> Any:
    """`f(h, h_stride, w, w_stride, length, ys, column)`: `y_r[column + p] += sum_k h[r, k] w[k, p]`.

    `h` are `rows` rows of float32, and `w` is read in `vectors` of `LANES` numbers of type `kind`. At `ys` lie the
    addresses of the rows that are added to, of type `to_kind`: float32, or bfloat16, to which sums are rounded. What is
    added is one chain of products in order, whatever the tile.
    """

    store = emit_store_narrow if to_kind == "bfloat16" else emit_store

    def emit(
        builder: ir.IRBuilder,
        h: ir.Value,
        h_stride: ir.Value,
        w: ir.Value,
        w_stride: ir.Value,
        length: ir.Value,
        ys: ir.Value,
        column: ir.Value,
    ) -> None:
        tile = Tile(builder, rows, vectors)
        h_rows = [pointer(builder, h, start, FLOAT) for start in multiples(builder, h_stride, rows)]
        with cgutils.for_range(builder, length) as loop:
            place = builder.mul(loop.index, w_stride)
            each = [builder.add(place, ir.Constant(WORD, index * LANES)) for index in range(vectors)]
            for offset in each:
                ahead = builder.add(offset, ir.Constant(WORD, vectors * LANES))
                emit_prefetch(builder, pointer(builder, w, ahead, ir.IntType(8 * BYTES[kind])))
            tile.add(h_rows, loop.index, [emit_load(builder, w, offset, kind) for offset in each])
        totals = iter(tile.totals())
        for row in range(rows):
            y = builder.load(pointer(builder, ys, ir.Constant(WORD, row), WORD))
            for index in range(vectors):
                to = builder.add(column, ir.Constant(WORD, index * LANES))
                store(builder, y, to, builder.fadd(emit_load(builder, y, to, to_kind), next(totals)))

    return operation(types.void, (types.intp,) * 7, emit)
