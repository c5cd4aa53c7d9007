"""Products of rows of queries and of keys that both lie number by number: sums across lanes."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.vectors import (
    FLOAT,
    INTS,
    LANES,
    WORD,
    emit_fma,
    emit_fold_all,
    emit_load,
    multiples,
    number,
    operation,
    pointer,
)


def make_dot_tile(rows: int) -> Any:
    """`f(q, k, stride, length, out, out_stride)`: `out[r, j] = sum_i q[r, i] k[j, i]` of `rows` rows.

    There are `LANES / rows` keys, so that the sums are one vector. Rows of `q` and of `k` have `length` float32, whole
    vectors, and lie `stride` apart, those of `out` `out_stride`. A sum is made in the same order whatever the tile.
    """
    keys = LANES // rows

    def emit(
        builder: ir.IRBuilder,
        q: ir.Value,
        k: ir.Value,
        stride: ir.Value,
        length: ir.Value,
        out: ir.Value,
        out_stride: ir.Value,
    ) -> None:
        totals = [cgutils.alloca_once_value(builder, number(0.0)) for _ in range(LANES)]
        for total in totals:
            builder.store(number(0.0), total)
        q_rows, k_rows = (
            [builder.add(base, builder.mul(start, ir.Constant(WORD, 4))) for start in multiples(builder, stride, count)]
            for base, count in ((q, rows), (k, keys))
        )
        step = ir.Constant(WORD, LANES)
        with cgutils.for_range_slice(builder, ir.Constant(WORD, 0), length, step) as (place, _):
            values = [emit_load(builder, address, place) for address in k_rows]
            for row, address in enumerate(q_rows):
                query = emit_load(builder, address, place)
                for each, value in enumerate(values):
                    total = totals[row * keys + each]
                    builder.store(emit_fma(builder, query, value, builder.load(total)), total)
        sums = emit_fold_all(builder, [builder.load(total) for total in totals], builder.fadd)
        part = ir.VectorType(FLOAT, keys)
        for row, start in enumerate(multiples(builder, out_stride, rows)):
            lanes = ir.Constant(ir.VectorType(INTS.element, keys), list(range(row * keys, (row + 1) * keys)))
            place = builder.bitcast(pointer(builder, out, start, FLOAT), part.as_pointer())
            builder.store(builder.shuffle_vector(sums, sums, lanes), place, align=4)

    return operation(types.void, (types.intp,) * 6, emit)
