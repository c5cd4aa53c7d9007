"""Vectors of whole numbers for kernels compiled by Numba: products of bytes, and numbers cut into bytes.

A vector of `LANES` int32 is also one of four times as many bytes. Emitters take and give LLVM's values; the functions
for kernels take addresses.
"""

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    FLOAT,
    HAS_AVX512,
    INT,
    INTS,
    LANES,
    VECTOR,
    WORD,
    emit_fold,
    emit_splat,
    number,
    operation,
    pointer,
    vector,
)

_features = llvm.get_host_cpu_features()
HAS_DOT = bool(_features.get("avx512vnni" if HAS_AVX512 else "avxvnni", False))
"""Whether the processor multiplies bytes and adds four products at once (`vpdpbusd`)."""

_BITS = 32 * LANES
_SHORTS = ir.VectorType(ir.IntType(16), 2 * LANES)
_BYTES = ir.VectorType(BYTE, 4 * LANES)


def splat_int(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """All lanes a scalar of 32 bits."""
    one = builder.insert_element(ir.Constant(INTS, ir.Undefined), scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(one, ir.Constant(INTS, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def broadcast_byte(value: int) -> ir.Constant:
    """One byte, everywhere."""
    return ir.Constant(INTS, [int.from_bytes(bytes([value] * 4), "little", signed=True)] * LANES)


def load_ints(builder: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """`LANES` int32 from number `offset` on, from any alignment."""
    place = pointer(builder, address, ir.Constant(WORD, offset), INT)
    return builder.load(builder.bitcast(place, INTS.as_pointer()), align=1)


def emit_dot(builder: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Each lane of `total` plus the products of its four bytes (those of `unsigned` are unsigned), modulo 2 ** 32."""
    if HAS_DOT:
        kind = ir.FunctionType(INTS, [INTS] * 3)
        name = f"llvm.x86.avx512.vpdpbusd.{_BITS}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [total, unsigned, signed])
    eight = ir.Constant(_SHORTS, [8] * (2 * LANES))
    left, right = (builder.bitcast(each, _SHORTS) for each in (unsigned, signed))
    pairs = [
        (
            builder.and_(left, ir.Constant(_SHORTS, [255] * (2 * LANES))),
            builder.ashr(builder.shl(right, eight), eight),
        ),
        (builder.lshr(left, eight), builder.ashr(right, eight)),
    ]
    name = "llvm.x86.avx512.pmaddw.d.512" if HAS_AVX512 else "llvm.x86.avx2.pmadd.wd"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(INTS, [_SHORTS] * 2), name)
    for pair in pairs:
        total = builder.add(total, builder.call(function, pair))
    return total


def emit_byte_table(builder: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """For each byte of `index`, from 0 to 15, that byte of `table`, which repeats its 16 bytes."""
    name = "llvm.x86.avx512.pshuf.b.512" if HAS_AVX512 else "llvm.x86.avx2.pshuf.b"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_BYTES, [_BYTES] * 2), name)
    found = builder.call(function, [builder.bitcast(each, _BYTES) for each in (table, index)])
    return builder.bitcast(found, INTS)


def emit_float_table(builder: ir.IRBuilder, table: list[ir.Value], index: ir.Value) -> ir.Value:
    """For the lowest four bits of each lane of `index` the number that 16 floats in one or two vectors have there."""
    kind = ir.FunctionType(VECTOR, [VECTOR, INTS])
    name = "llvm.x86.avx512.permvar.sf.512" if HAS_AVX512 else "llvm.x86.avx2.permps"
    permute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, kind.args), name)
    if HAS_AVX512:
        return builder.call(permute, [table[0], index])
    low, high = (builder.call(permute, [half, index]) for half in table)
    is_low = builder.icmp_signed(
        ">=", builder.shl(index, ir.Constant(INTS, [28] * LANES)), ir.Constant(INTS, [0] * LANES)
    )
    return builder.select(is_low, low, high)


def _call(builder: ir.IRBuilder, name: str, x: ir.Value) -> ir.Value:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, [VECTOR]), name)
    return builder.call(function, [x])


def _emit_larger_magnitude(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The larger of |a| and |b|; NaN if either is. They are compared as whole numbers, where NaN is the largest."""
    is_vector = a.type == VECTOR
    kind = INTS if is_vector else INT
    mask = ir.Constant(INTS, [0x7FFFFFFF] * LANES) if is_vector else ir.Constant(INT, 0x7FFFFFFF)
    left, right = (builder.and_(builder.bitcast(each, kind), mask) for each in (a, b))
    found = builder.select(builder.icmp_signed(">", left, right), left, right)
    return builder.bitcast(found, VECTOR if is_vector else FLOAT)


def _store_bytes(builder: ir.IRBuilder, address: ir.Value, value: ir.Value, is_split: bool) -> None:
    """The lowest bytes of int32 lanes; if `is_split`, of every eight those of even places first."""
    narrow = ir.VectorType(BYTE, LANES)
    found = builder.trunc(value, narrow)
    if is_split:
        order = [start + each for start in range(0, LANES, 8) for each in (0, 2, 4, 6, 1, 3, 5, 7)]
        found = builder.shuffle_vector(found, found, ir.Constant(INTS, order))
    builder.store(found, builder.inttoptr(address, narrow.as_pointer()), align=1)


def make_store_digits(digits: int, is_split: bool) -> object:
    """`f(to, stride, x, scale)`: `x / scale`, rounded, as `digits` numbers to the base of 256, from -128 to 127.

    The highest comes first; the next one is stored `stride` bytes further on. What is beyond the range of one digit
    becomes the end of it; more digits are for numbers that are within their range.
    """

    def emit(builder: ir.IRBuilder, to: ir.Value, stride: ir.Value, x: ir.Value, scale: ir.Value) -> None:
        scaled = _call(builder, f"llvm.rint.v{LANES}f32", builder.fdiv(x, emit_splat(builder, scale)))
        if digits == 1:
            for end, over in ((-128.0, "<"), (127.0, ">")):
                scaled = builder.select(builder.fcmp_ordered(over, scaled, number(end)), number(end), scaled)
        rest = builder.fptosi(scaled, INTS)
        shift = ir.Constant(INTS, [24] * LANES)
        for place in reversed(range(digits)):
            address = builder.add(to, builder.mul(stride, ir.Constant(WORD, place)))
            _store_bytes(builder, address, rest, is_split)
            if place:
                digit = builder.ashr(builder.shl(rest, shift), shift)
                rest = builder.ashr(builder.sub(rest, digit), ir.Constant(INTS, [8] * LANES))

    return operation(types.void, (types.intp, types.intp, vector, types.float32), emit)


def _emit_sum_bytes(builder: ir.IRBuilder, address: ir.Value, count: ir.Value) -> ir.Value:
    narrow = ir.VectorType(BYTE, 16)
    wide = ir.VectorType(INT, 16)
    total = cgutils.alloca_once_value(builder, ir.Constant(wide, [0] * 16))
    with cgutils.for_range(builder, builder.udiv(count, ir.Constant(WORD, 16))) as loop:
        place = builder.add(address, builder.mul(loop.index, ir.Constant(WORD, 16)))
        found = builder.load(builder.inttoptr(place, narrow.as_pointer()), align=1)
        builder.store(builder.add(builder.load(total), builder.sext(found, wide)), total)
    reduce = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(INT, [wide]), "llvm.vector.reduce.add.v16i32"
    )
    return builder.sext(builder.call(reduce, [builder.load(total)]), WORD)


larger_magnitude = operation(vector, (vector, vector), _emit_larger_magnitude)
"""The larger absolute value, lane by lane; NaN if there is one."""
magnitude = operation(
    types.float32,
    (vector,),
    lambda builder, a: emit_fold(builder, a, lambda x, y: _emit_larger_magnitude(builder, x, y)),
)
"""The largest absolute value of the lanes."""
sum_bytes = operation(types.intp, (types.intp, types.intp), _emit_sum_bytes)
"""`sum_bytes(address, count)`: the sum of int8, a multiple of 16 of them."""
