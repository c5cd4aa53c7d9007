"""New keys and values on their way into pages."""

from typing import Any

from llvmlite import ir
from numba.core import types

from jaxllm.pallas_kernels.numba.memory import compiled, int32, word
from jaxllm.pallas_kernels.numba.vectors import FLOAT, INTS, LANES, WORD, operation, pointer
from jaxllm.pallas_kernels.paged_attention.cpu.rotate import rotate
from jaxllm.pallas_kernels.paged_attention.cpu.softmax import ONE
from jaxllm.pallas_kernels.paged_attention.cpu.work import (
    W_BYTES,
    W_C,
    W_COS,
    W_H,
    W_KV_STRIDE,
    W_NEW_K,
    W_NEW_V,
    W_POSITIONS,
    key_and_value_at,
)


def finite(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector or a number, with 0 in place of what is not finite: a number less itself is 0, if it is one."""
    zero = ir.Constant(value.type, [0.0] * LANES if isinstance(value.type, ir.VectorType) else 0.0)
    return builder.select(builder.fcmp_ordered("==", builder.fsub(value, value), zero), value, zero)


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """`LANES` vectors, row by row, as columns: squares beside the diagonal change places, halves, quarters, ..."""
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


def make_write(kind: str, bytes_each: int) -> Any:
    """The function that writes, for a type of cache (NumPy's name) of 1, 2 or 4 bytes."""
    one, line, square = make_movers(kind, bytes_each)

    @compiled
    def write(work: int, row: int, first: int, last: int, head: int, scratch: int) -> None:
        """Put keys and values of a row's tokens from `first` up to `last` into their pages.

        Of float32 what is finite (see `ragged.quantise`, which does it for the other types). Keys are rotated first,
        which takes memory for as many of them as are written together.
        """
        head_size, page_size, bytes_each = word(work, W_H), word(work, W_C), word(work, W_BYTES)
        stride = word(work, W_KV_STRIDE)
        position = int32(word(work, W_POSITIONS), first)
        token = first
        while token < last:
            together = LANES if position % LANES == 0 and token + LANES <= last else 1
            key, value, _, _ = key_and_value_at(work, row, position, head)
            source, step = word(work, W_NEW_K) + (token * stride + head * head_size) * bytes_each, stride
            if word(work, W_COS):
                for each in range(together):
                    rotate(work, token + each, source + 4 * each * stride, scratch + 4 * each * head_size, ONE)
                source, step = scratch, head_size
            if together > 1:
                for place in range(0, head_size, LANES):
                    square(key + place * page_size * bytes_each, page_size, source + place * bytes_each, step)
            else:
                for place in range(head_size):
                    one(key + place * page_size * bytes_each, source + place * bytes_each)
            source = word(work, W_NEW_V) + (token * stride + head * head_size) * bytes_each
            for each in range(together):
                for place in range(0, head_size, LANES):
                    offset = each * head_size + place
                    line(value + offset * bytes_each, source + (each * stride + place) * bytes_each)
            token += together
            position += together

    return write
