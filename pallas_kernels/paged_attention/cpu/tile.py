"""The inner loop of both products of attention: a tile of sums that stays in registers."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.numba.vectors import (
    BYTE,
    FLOAT,
    LANES,
    WORD,
    emit_fma,
    emit_load,
    emit_prefetch,
    emit_splat,
    emit_store,
    multiples,
    number,
    operation,
    pointer,
)


def make_outer_tile(rows: int, panels: int, kind: str) -> Any:
    """`f(a, a_stride, bs, b_stride, run, length, c, c_stride, more, nexts, step)`: `c[r, p] = sum_k a[r, k] b[k, p]`.

    `a` holds `rows` rows of `length` float32. `b` is read in runs of `run` rows, each in `panels` of `LANES` numbers of
    type `kind`: at `bs` lie the addresses of the panels, run by run; in a panel rows lie `b_stride` apart. Results lie
    side by side in `c`. With `more` sums begin with what is in `c`. A result is one chain of products in order,
    whatever the tile.

    At `nexts` lie as many addresses of what is needed next: row k of a run fetches what lies `k * step` bytes behind.
    """

    def emit(
        builder: ir.IRBuilder,
        a: ir.Value,
        a_stride: ir.Value,
        bs: ir.Value,
        b_stride: ir.Value,
        run: ir.Value,
        length: ir.Value,
        c: ir.Value,
        c_stride: ir.Value,
        more: ir.Value,
        nexts: ir.Value,
        step: ir.Value,
    ) -> None:
        places = [
            [builder.add(start, ir.Constant(WORD, panel * LANES)) for panel in range(panels)]
            for start in multiples(builder, c_stride, rows)
        ]
        totals = [[cgutils.alloca_once_value(builder, number(0.0)) for _ in line] for line in places]
        with builder.if_then(builder.trunc(more, ir.IntType(1))):
            for line, into in zip(places, totals, strict=True):
                for place, total in zip(line, into, strict=True):
                    builder.store(emit_load(builder, c, place), total)
        starts = multiples(builder, a_stride, rows)
        with cgutils.for_range_slice(builder, ir.Constant(WORD, 0), length, run) as (begin, index):
            words = [
                builder.add(builder.mul(index, ir.Constant(WORD, panels)), ir.Constant(WORD, each))
                for each in range(panels)
            ]
            here = [builder.load(pointer(builder, bs, place, WORD)) for place in words]
            there = [builder.load(pointer(builder, nexts, place, WORD)) for place in words]
            xs = [pointer(builder, a, builder.add(start, begin), FLOAT) for start in starts]
            left = builder.sub(length, begin)
            count = builder.select(builder.icmp_signed("<", left, run), left, run)
            with cgutils.for_range(builder, count) as loop:
                place, ahead = builder.mul(loop.index, b_stride), builder.mul(loop.index, step)
                values = [emit_load(builder, address, place, kind) for address in here]
                for address in there:
                    emit_prefetch(builder, pointer(builder, address, ahead, BYTE))
                for x, line in zip(xs, totals, strict=True):
                    scalar = emit_splat(builder, builder.load(builder.gep(x, [loop.index])))
                    for panel, total in zip(values, line, strict=True):
                        builder.store(emit_fma(builder, scalar, panel, builder.load(total)), total)
        for line, into in zip(places, totals, strict=True):
            for place, total in zip(line, into, strict=True):
                emit_store(builder, c, place, builder.load(total))

    return operation(types.void, (types.intp,) * 11, emit)
