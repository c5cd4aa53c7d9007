"""The inner loops of products with quantized matrices: a tile of sums over the inputs of one group.

Every tile is a function of the same arguments:

    f(x, depth, w, w_stride, steps, meta, meta_stride, scales, offsets, scale_stride, scale_kind, table, base,
      base_stride, y, y_stride, ahead, pace, turn, after)

`x` are prepared rows, `depth` inputs each, as `prepare` has them: from the first input of the group on. A block of
weights is `steps` times what one load of 16 outputs brings; the next one begins `w_stride` bytes after it. `meta` is
what `prepare` knows of a group of a row, the next row's is `meta_stride` words further on. `scales` and `offsets` are
those of the group, [16], of the next block `scale_stride` elements further on; no offsets are 0. They are of a type
`SCALE_KINDS[scale_kind]`. Results are added to those at `base`, rows of `base_stride` floats, unless that is 0, and go
to `y`, rows of `y_stride` floats. Step k fetches what lies `ahead + k * pace` bytes after the start of each block, and
from step `turn` on what lies `after + k * pace` bytes after it.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.integers import (
    broadcast_byte,
    emit_byte_table,
    emit_dot,
    emit_float_table,
    load_ints,
    splat_int,
)
from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    FLOAT,
    INT,
    INTS,
    LANES,
    VECTOR,
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
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.quantized.form import SCALE_KINDS, Form

REGISTERS = BLOCK // LANES
"""Registers of a block."""
WIDEN_AHEAD = 1024
"""Bytes from a weight that is widened to the one that is fetched meanwhile."""
UNIT, SUM, FIRST_DIGIT = range(3)
"""Words of what is known of a group of a row: what its integers are multiplied with, the sum of its numbers (float32),
and where the sums of each digit begin (int32)."""


@dataclass(frozen=True)
class _Operands:
    """The arguments of a tile."""

    x: ir.Value
    depth: ir.Value
    w: ir.Value
    w_stride: ir.Value
    steps: ir.Value
    meta: ir.Value
    meta_stride: ir.Value
    scales: ir.Value
    offsets: ir.Value
    scale_stride: ir.Value
    scale_kind: ir.Value
    table: ir.Value
    base: ir.Value
    base_stride: ir.Value
    y: ir.Value
    y_stride: ir.Value
    ahead: ir.Value
    pace: ir.Value
    turn: ir.Value
    behind: ir.Value


def make_tile(form: Form, rows: int, blocks: int) -> Any:
    """The tile of a form, of some rows and some blocks side by side."""
    sums = _integer_sums if form.digits else _float_sums

    def emit(builder: ir.IRBuilder, *arguments: ir.Value) -> None:
        operands = _Operands(*arguments)
        found = sums(builder, operands, form, rows, blocks)
        _scaled(builder, operands, form, rows, blocks, found)

    return operation(types.void, (types.intp,) * len(fields(_Operands)), emit)


def _prefetched(builder: ir.IRBuilder, operands: _Operands, starts: list[ir.Value], step: ir.Value) -> None:
    is_first = builder.icmp_signed("<", step, operands.turn)
    ahead = builder.select(is_first, operands.ahead, operands.behind)
    there = builder.add(ahead, builder.mul(step, operands.pace))
    for start in starts:
        emit_prefetch(builder, pointer(builder, start, there, BYTE))


def constant(value: int) -> ir.Constant:
    """A word."""
    return ir.Constant(WORD, value)


def _integer_sums(builder: ir.IRBuilder, operands: _Operands, form: Form, rows: int, blocks: int) -> list[ir.Value]:
    """Sums of each row and each register, whole numbers made of those of digits, as float32."""
    digits, vectors = form.digits, blocks * REGISTERS
    parts = 2 if form.is_coded else 1
    x_rows = [builder.add(operands.x, start) for start in multiples(builder, operands.depth, rows * digits)]
    starts = [builder.add(operands.w, start) for start in multiples(builder, operands.w_stride, blocks)]
    totals = []
    for row in multiples(builder, operands.meta_stride, rows):
        for digit in range(digits):
            place = builder.add(row, constant(FIRST_DIGIT + digit))
            first = splat_int(builder, builder.load(pointer(builder, operands.meta, place, INT)))
            totals += [cgutils.alloca_once_value(builder, first) for _ in range(vectors)]
    table = load_ints(builder, operands.table, 0) if form.is_looked_up else None
    with cgutils.for_range(builder, operands.steps) as loop:
        _prefetched(builder, operands, starts, loop.index)
        behind = builder.mul(loop.index, constant(4 * BLOCK))
        raw = [
            load_ints(builder, builder.add(start, behind), each * LANES)
            for start in starts
            for each in range(REGISTERS)
        ]
        place = builder.mul(loop.index, constant(parts))
        for part in range(parts):
            weights = [unsigned(builder, each, form, part, table) for each in raw]
            left = iter(totals)
            for row in x_rows:
                scalar = builder.load(pointer(builder, row, builder.add(place, constant(part)), INT))
                spread = splat_int(builder, scalar)
                for weight in weights:
                    total = next(left)
                    builder.store(emit_dot(builder, builder.load(total), weight, spread), total)
    found = []
    for row in range(rows):
        for each in range(vectors):
            own = [totals[(row * digits + digit) * vectors + each] for digit in range(digits)]
            found.append(join_digits(builder, [builder.load(total) for total in own]))
    return found


def join_digits(builder: ir.IRBuilder, digits: list[ir.Value]) -> ir.Value:
    """Sums of digits to the base of 256 as one of float32; the highest comes first."""
    whole = builder.sitofp(digits[0], VECTOR)
    for digit in digits[1:]:
        whole = emit_fma(builder, whole, number(256.0), builder.sitofp(digit, VECTOR))
    return whole


def unsigned(builder: ir.IRBuilder, raw: ir.Value, form: Form, part: int, table: ir.Value | None) -> ir.Value:
    """Bytes of weights without signs: int8 plus 128, the lower or upper codes, or what a table has for those."""
    if form.is_widened:
        return raw
    if not form.is_coded:
        return builder.xor(raw, broadcast_byte(128))
    if part:
        raw = builder.lshr(raw, ir.Constant(INTS, [4] * LANES))
    codes = builder.and_(raw, broadcast_byte(15))
    return codes if table is None else emit_byte_table(builder, table, codes)


def _float_sums(builder: ir.IRBuilder, operands: _Operands, form: Form, rows: int, blocks: int) -> list[ir.Value]:
    """Sums of each row and each register, of products of float32 in order."""
    vectors = blocks * REGISTERS
    x_rows = [pointer(builder, operands.x, start, FLOAT) for start in multiples(builder, operands.depth, rows)]
    starts = [builder.add(operands.w, start) for start in multiples(builder, operands.w_stride, blocks)]
    totals = [cgutils.alloca_once_value(builder, number(0.0)) for _ in range(rows * vectors)]
    table = [emit_load(builder, operands.table, constant(start)) for start in range(0, 16, LANES)]
    inputs = 8 if form.is_coded else 1
    with cgutils.for_range(builder, operands.steps) as loop:
        _prefetched(builder, operands, starts, loop.index)
        places = [
            (builder.add(start, builder.mul(loop.index, constant(form.step_bytes))), each * LANES)
            for start in starts
            for each in range(REGISTERS)
        ]
        raw = [load_ints(builder, *place) for place in places] if form.is_coded else []
        first = builder.mul(loop.index, constant(inputs))
        for each in range(inputs):
            if form.is_coded:
                shift = ir.Constant(INTS, [4 * each] * LANES)
                weights = [emit_float_table(builder, table, builder.lshr(code, shift)) for code in raw]
            else:
                weights = [emit_load(builder, start, constant(offset), _kind(form)) for start, offset in places]
            left = iter(totals)
            for row in x_rows:
                scalar = emit_splat(builder, builder.load(builder.gep(row, [builder.add(first, constant(each))])))
                for weight in weights:
                    total = next(left)
                    builder.store(emit_fma(builder, scalar, weight, builder.load(total)), total)
    return [builder.load(total) for total in totals]


def _kind(form: Form) -> str:
    """Type of values that are not codes, as NumPy's name."""
    return "float32" if form.is_widened else form.values.value


def make_widen(form: Form, blocks: int) -> Any:
    """`f(to, to_stride, w, w_stride, steps, table)`: blocks of weights as a form that `is_widened` has them."""
    wide = replace(form, is_widened=True)
    out_bytes = wide.step_bytes * form.inputs_per_step // wide.inputs_per_step

    def emit(
        builder: ir.IRBuilder,
        to: ir.Value,
        to_stride: ir.Value,
        w: ir.Value,
        w_stride: ir.Value,
        steps: ir.Value,
        table: ir.Value,
    ) -> None:
        codes = [emit_load(builder, table, constant(start)) for start in range(0, 16, LANES)]
        for block in range(blocks):
            source = builder.add(w, builder.mul(w_stride, constant(block)))
            target = builder.add(to, builder.mul(to_stride, constant(block)))
            with cgutils.for_range(builder, steps) as loop:
                here = builder.add(source, builder.mul(loop.index, constant(form.step_bytes)))
                there = builder.add(target, builder.mul(loop.index, constant(out_bytes)))
                emit_prefetch(builder, pointer(builder, here, constant(WIDEN_AHEAD), BYTE))
                for each in range(REGISTERS):
                    for place, found in enumerate(_widened(builder, here, each * LANES, form, table, codes)):
                        emit_store(builder, there, constant(place * BLOCK + each * LANES), found)

    return operation(types.void, (types.intp,) * 6, emit)


def _widened(
    builder: ir.IRBuilder, here: ir.Value, offset: int, form: Form, table: ir.Value, codes: list[ir.Value]
) -> list[ir.Value]:
    """Vectors that the weights of a step become."""
    if not form.is_coded:
        return [emit_load(builder, here, constant(offset), form.values.value)]
    raw = load_ints(builder, here, offset)
    if form.digits:
        bytes_of = load_ints(builder, table, 0) if form.is_looked_up else None
        return [builder.bitcast(unsigned(builder, raw, form, part, bytes_of), VECTOR) for part in range(2)]
    shifts = [ir.Constant(INTS, [4 * place] * LANES) for place in range(8)]
    return [emit_float_table(builder, codes, builder.lshr(raw, shift)) for shift in shifts]


def _scaled(
    builder: ir.IRBuilder, operands: _Operands, form: Form, rows: int, blocks: int, sums: list[ir.Value]
) -> None:
    """Multiply sums with the scales, add offsets, and what is at `base`; write them down."""
    bases = multiples(builder, operands.scale_stride, blocks)
    places = [builder.add(base, constant(each * LANES)) for base in bases for each in range(REGISTERS)]
    metas = multiples(builder, operands.meta_stride, rows)

    def starts_of(stride: ir.Value) -> list[ir.Value]:
        """Where the vectors of rows lie."""
        found = multiples(builder, stride, rows)
        return [builder.add(row, constant(index * LANES)) for row in found for index in range(len(places))]

    starts = starts_of(operands.y_stride)
    zero = number(0.0)

    def known(word: int) -> list[ir.Value]:
        """A word of what is known of each row."""
        at = [pointer(builder, operands.meta, builder.add(meta, constant(word)), FLOAT) for meta in metas]
        return [emit_splat(builder, builder.load(each)) for each in at]

    totals = [cgutils.alloca_once_value(builder, zero) for _ in starts]
    with builder.if_then(builder.icmp_signed("!=", operands.base, constant(0))):
        for total, at in zip(totals, starts_of(operands.base_stride), strict=True):
            builder.store(emit_load(builder, operands.base, at), total)
    with builder.if_then(builder.icmp_signed("!=", operands.offsets, constant(0))):
        offsets = load_scales(builder, operands.offsets, places, operands.scale_kind)
        row_sums = [each for each in known(SUM) for _ in places]
        for total, row_sum, offset in zip(totals, row_sums, offsets * rows, strict=True):
            builder.store(emit_fma(builder, row_sum, offset, builder.load(total)), total)
    scales = load_scales(builder, operands.scales, places, operands.scale_kind)
    units = [each for each in known(UNIT) for _ in places]
    for total, unit, scale, found, at in zip(totals, units, scales * rows, sums, starts, strict=True):
        value = emit_fma(builder, builder.fmul(found, unit), scale, builder.load(total))
        emit_store(builder, operands.y, at, value)


def load_scales(builder: ir.IRBuilder, address: ir.Value, places: list[ir.Value], kind: ir.Value) -> list[ir.Value]:
    """Vectors of one of the types of scales, which one is known when the kernel runs."""
    found = [cgutils.alloca_once(builder, VECTOR) for _ in places]
    for index, name in enumerate(SCALE_KINDS):
        with builder.if_then(builder.icmp_signed("==", kind, constant(index))):
            for to, place in zip(found, places, strict=True):
                builder.store(emit_load(builder, address, place, name), to)
    return [builder.load(each) for each in found]
