"""The inner loops of matrix products: a tile of results that stays in registers."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu.vectors import (
    BYTE,
    FLOAT,
    LANES,
    VECTOR,
    WORD,
    emit_fma,
    emit_folds,
    emit_load,
    emit_prefetch,
    emit_splat,
    emit_store,
    number,
    operation,
    pointer,
)


def _multiples(builder: ir.IRBuilder, step: ir.Value, count: int) -> list[ir.Value]:
    """0, `step`, 2 `step`, ..."""
    return [builder.mul(step, ir.Constant(WORD, index)) for index in range(count)]


def make_dot_tile(rows: int, columns: int) -> Any:
    """`f(x, w, w_stride, length, y, y_stride, more, ahead)`: `y[r, c] = x[r] . w[c]`, added to `y` if `more`.

    `x` is float32 [length / LANES, rows, LANES]; `w` are `columns` rows of float32. Every lane sums what falls to it
    in order, and the lanes are added up in the end: a result does not depend on the tile it is part of. Weights
    `ahead` elements further on are fetched meanwhile.
    """

    def emit(
        builder: ir.IRBuilder,
        x: ir.Value,
        w: ir.Value,
        w_stride: ir.Value,
        length: ir.Value,
        y: ir.Value,
        y_stride: ir.Value,
        more: ir.Value,
        ahead: ir.Value,
    ) -> None:
        totals = [[cgutils.alloca_once_value(builder, number(0.0)) for _ in range(columns)] for _ in range(rows)]
        w_starts = [pointer(builder, w, offset, FLOAT) for offset in _multiples(builder, w_stride, columns)]
        x_start = pointer(builder, x, ir.Constant(WORD, 0), VECTOR)
        with cgutils.for_range(builder, builder.udiv(length, ir.Constant(WORD, LANES))) as loop:
            place = builder.mul(loop.index, ir.Constant(WORD, LANES))
            here = [builder.gep(start, [place]) for start in w_starts]
            weights = [builder.load(builder.bitcast(each, VECTOR.as_pointer()), align=4) for each in here]
            for each in here:
                emit_prefetch(builder, builder.gep(each, [ahead]))
            xs = builder.gep(x_start, [builder.mul(loop.index, ir.Constant(WORD, rows))])
            for row, line in enumerate(totals):
                values = builder.load(builder.gep(xs, [ir.Constant(WORD, row)]), align=4)
                for weight, total in zip(weights, line, strict=True):
                    builder.store(emit_fma(builder, values, weight, builder.load(total)), total)
        found = emit_folds(builder, [builder.load(total) for line in totals for total in line], builder.fadd)
        outs = [
            pointer(builder, y, builder.add(start, ir.Constant(WORD, column)), FLOAT)
            for start in _multiples(builder, y_stride, rows)
            for column in range(columns)
        ]
        with builder.if_else(builder.trunc(more, ir.IntType(1))) as (then, otherwise):
            with then:
                for out, value in zip(outs, found, strict=True):
                    builder.store(builder.fadd(builder.load(out), value), out)
            with otherwise:
                for out, value in zip(outs, found, strict=True):
                    builder.store(value, out)

    return operation(types.void, (types.intp,) * 8, emit)


def make_outer_tile(rows: int, panels: int, kind: str) -> Any:
    """`f(a, a_stride, panels, b_stride, length, c, c_stride, more, next_stride)`: `c[r, p] = sum_k a[r, k] b_p[k]`.

    `a` holds `rows` rows of float32. `panels` is the address of the addresses of the `b_p`, each of which has rows of
    `LANES` numbers of type `kind` that lie `b_stride` apart; their results lie side by side in `c`. With `more` sums
    begin with what is in `c`. A result is one chain of products in order, whatever the tile.

    Behind the addresses of the `b_p` come as many addresses of what is needed next: step k fetches what lies `k *
    next_stride` bytes behind them.
    """

    def emit(
        builder: ir.IRBuilder,
        a: ir.Value,
        a_stride: ir.Value,
        bs: ir.Value,
        b_stride: ir.Value,
        length: ir.Value,
        c: ir.Value,
        c_stride: ir.Value,
        more: ir.Value,
        next_stride: ir.Value,
    ) -> None:
        words = [builder.load(pointer(builder, bs, ir.Constant(WORD, index), WORD)) for index in range(2 * panels)]
        places = [
            [builder.add(start, ir.Constant(WORD, panel * LANES)) for panel in range(panels)]
            for start in _multiples(builder, c_stride, rows)
        ]
        totals = [[cgutils.alloca_once_value(builder, number(0.0)) for _ in line] for line in places]
        with builder.if_then(builder.trunc(more, ir.IntType(1))):
            for line, into in zip(places, totals, strict=True):
                for place, total in zip(line, into, strict=True):
                    builder.store(emit_load(builder, c, place), total)
        starts = _multiples(builder, a_stride, rows)
        with cgutils.for_range(builder, length) as loop:
            place, ahead = builder.mul(loop.index, b_stride), builder.mul(loop.index, next_stride)
            values = [emit_load(builder, address, place, kind) for address in words[:panels]]
            for address in words[panels:]:
                emit_prefetch(builder, pointer(builder, address, ahead, BYTE))
            for start, line in zip(starts, totals, strict=True):
                scalar = emit_splat(builder, builder.load(pointer(builder, a, builder.add(start, loop.index), FLOAT)))
                for panel, total in zip(values, line, strict=True):
                    builder.store(emit_fma(builder, scalar, panel, builder.load(total)), total)
        for line, into in zip(places, totals, strict=True):
            for place, total in zip(line, into, strict=True):
                emit_store(builder, c, place, builder.load(total))

    return operation(types.void, (types.intp,) * 9, emit)
