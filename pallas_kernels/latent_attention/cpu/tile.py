"""Products of rows of queries and of keys that both lie number by number: sums across lanes."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.bfloat16 import PAIRS, emit_dot_pairs, load_pairs
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


def make_dot_tile(rows: int, kind: str = "float32") -> Any:
    """`f(q, q_stride, k, k_stride, length, out, out_stride)`: `out[r, j] = sum_i q[r, i] k[j, i]` of `rows` rows.

    There are `LANES / rows` keys, so that the sums are one vector. Rows of `q` and of `k` have `length` float32, whole
    vectors, and lie so far apart as the strides say, those of `out` `out_stride`. A sum is made in the same order
    whatever the tile. Where `kind` is `PAIRS`, rows are pairs of bfloat16, which lengths and strides count.
    """
    keys, is_paired = LANES // rows, kind == PAIRS

    read: Any = load_pairs if is_paired else emit_load

    def add(builder: ir.IRBuilder, total: ir.Value, query: ir.Value, value: ir.Value) -> ir.Value:
        if is_paired:
            return emit_dot_pairs(builder, total, query, value)
        return emit_fma(builder, query, value, total)

    def emit(
        builder: ir.IRBuilder,
        q: ir.Value,
        q_stride: ir.Value,
        k: ir.Value,
        k_stride: ir.Value,
        length: ir.Value,
        out: ir.Value,
        out_stride: ir.Value,
    ) -> None:
        totals = [cgutils.alloca_once_value(builder, number(0.0)) for _ in range(LANES)]
        for total in totals:
            builder.store(number(0.0), total)
        q_rows, k_rows = (
            [builder.add(base, builder.mul(start, ir.Constant(WORD, 4))) for start in multiples(builder, stride, count)]
            for base, stride, count in ((q, q_stride, rows), (k, k_stride, keys))
        )
        step = ir.Constant(WORD, LANES)
        with cgutils.for_range_slice(builder, ir.Constant(WORD, 0), length, step) as (place, _):
            values = [read(builder, address, place) for address in k_rows]
            for row, address in enumerate(q_rows):
                query = read(builder, address, place)
                for each, value in enumerate(values):
                    total = totals[row * keys + each]
                    builder.store(add(builder, builder.load(total), query, value), total)
        sums = emit_fold_all(builder, [builder.load(total) for total in totals], builder.fadd)
        part = ir.VectorType(FLOAT, keys)
        for row, start in enumerate(multiples(builder, out_stride, rows)):
            lanes = ir.Constant(ir.VectorType(INTS.element, keys), list(range(row * keys, (row + 1) * keys)))
            place = builder.bitcast(pointer(builder, out, start, FLOAT), part.as_pointer())
            builder.store(builder.shuffle_vector(sums, sums, lanes), place, align=4)

    return operation(types.void, (types.intp,) * 7, emit)
