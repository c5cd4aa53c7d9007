"""Copies of numbers, vectors and squares of them between arrays."""

from typing import Any

from llvmlite import ir
from numba.core import types

from jaxllm.pallas_kernels.cpu_common.vectors import FLOAT, INTS, LANES, WORD, operation, pointer


def finite(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector or a number, with 0 in place of what is not finite: a number less itself is 0, if it is one."""
    zero = ir.Constant(value.type, [0.0] * LANES if isinstance(value.type, ir.VectorType) else 0.0)
    return builder.select(builder.fcmp_ordered("==", builder.fsub(value, value), zero), value, zero)


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """`LANES` vectors, row by row, as columns: squares alongside the diagonal change places, halves, quarters, ..."""
    width = LANES // 2
    while width:
        for first in (row for row in range(LANES) if not row & width):
            pair = rows[first], rows[first | width]
            upper = [lane if not lane & width else lane - width + LANES for lane in range(LANES)]
            lower = [lane + width if not lane & width else lane + LANES for lane in range(LANES)]
            rows[first], rows[first | width] = (
                builder.shuffle_vector(*pair, ir.Constant(INTS, lanes)) for lanes in (upper, lower)
            )
        width //= 2
    return rows


def make_movers(dtype: str, bytes_each: int) -> tuple[Any, Any, Any]:
    """Functions that copy numbers of a type (NumPy's name), of float32 with 0 in place of what is not finite.

    `one(to, source)` copies a number, `line(to, source)` a vector, `square(to, to_stride, source, source_stride)` as
    many vectors as a vector has lanes, transposed; strides count numbers.
    """
    kind = FLOAT if dtype == "float32" else ir.IntType(8 * bytes_each)
    vector, size = ir.VectorType(kind, LANES), bytes_each

    def place(builder: ir.IRBuilder, address: ir.Value, stride: ir.Value, row: int) -> ir.Value:
        start = pointer(builder, address, builder.mul(stride, ir.Constant(WORD, row)), kind)
        return builder.bitcast(start, vector.as_pointer())

    def read(builder: ir.IRBuilder, at: ir.Value) -> ir.Value:
        value = builder.load(at, align=size)
        return finite(builder, value) if kind == FLOAT else value

    def one(builder: ir.IRBuilder, to: ir.Value, source: ir.Value) -> None:
        first = ir.Constant(WORD, 0)
        builder.store(read(builder, pointer(builder, source, first, kind)), pointer(builder, to, first, kind))

    def line(builder: ir.IRBuilder, to: ir.Value, source: ir.Value) -> None:
        first = ir.Constant(WORD, 0)
        builder.store(read(builder, place(builder, source, first, 0)), place(builder, to, first, 0), align=size)

    def square(builder: ir.IRBuilder, to: ir.Value, to_stride: ir.Value, source: ir.Value, stride: ir.Value) -> None:
        rows = [read(builder, place(builder, source, stride, row)) for row in range(LANES)]
        for row, value in enumerate(_transposed(builder, rows)):
            builder.store(value, place(builder, to, to_stride, row), align=size)

    return (
        operation(types.void, (types.intp,) * 2, one),
        operation(types.void, (types.intp,) * 2, line),
        operation(types.void, (types.intp,) * 4, square),
    )
