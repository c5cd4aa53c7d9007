"""One row of whole numbers times blocks of a quantized matrix, block after block, as memory is read fastest.

All groups of a block are added up in registers. Sums are those of `tiles` to the last bit: what is added in another
order is whole.
"""

from dataclasses import dataclass, fields
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.integers import broadcast_byte, emit_dot, load_ints, splat_int
from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    FLOAT,
    INT,
    INTS,
    LANES,
    VECTOR,
    emit_fma,
    emit_load,
    emit_prefetch,
    emit_splat,
    emit_store,
    number,
    operation,
    pointer,
)
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.quantized.form import Form
from jaxllm.pallas_kernels.linear.cpu.quantized.tiles import (
    FIRST_DIGIT,
    REGISTERS,
    SUM,
    UNIT,
    constant,
    join_digits,
    load_scales,
    unsigned,
)

AHEAD, AHEAD_OF_CODES = 2048, 8192
"""Bytes from a weight to the one that is fetched meanwhile. Further ahead than the first, bytes are slower to come, and
nearer than the second, codes."""


@dataclass(frozen=True)
class _Operands:
    """The arguments: the prepared row, as `tiles` have it, and the blocks, with what lies alongside them.

    Scales and offsets are those of the first block, of all its groups, before those of the next; no offsets are 0.
    """

    x: ir.Value
    depth: ir.Value
    segment: ir.Value
    """Inputs of a group; the last one may have fewer."""
    w: ir.Value
    blocks: ir.Value
    meta: ir.Value
    scales: ir.Value
    offsets: ir.Value
    scale_kind: ir.Value
    table: ir.Value
    base: ir.Value
    """Floats that results are added to, or 0."""
    y: ir.Value
    jump: ir.Value
    """Bytes from the end of these blocks to those that are read next."""


def make_one_row(form: Form) -> Any:
    """A function of `_Operands`."""

    def emit(builder: ir.IRBuilder, *arguments: ir.Value) -> None:
        operands = _Operands(*arguments)
        depth, segment = operands.depth, operands.segment
        block_bytes = builder.mul(builder.udiv(depth, constant(form.inputs_per_step)), constant(form.step_bytes))
        end = builder.add(operands.w, builder.mul(operands.blocks, block_bytes))
        groups = builder.udiv(builder.add(depth, builder.sub(segment, constant(1))), segment)
        totals = [cgutils.alloca_once(builder, VECTOR) for _ in range(REGISTERS)]
        columns = [constant(each * LANES) for each in range(REGISTERS)]
        with cgutils.for_range(builder, operands.blocks) as outer:
            results = builder.mul(outer.index, constant(BLOCK))
            _begin(builder, operands.base, [builder.add(results, column) for column in columns], totals)
            block = builder.add(operands.w, builder.mul(outer.index, block_bytes))
            with cgutils.for_range(builder, groups) as inner:
                begin = builder.mul(inner.index, segment)
                left = builder.sub(depth, begin)
                length = builder.select(builder.icmp_signed("<", left, segment), left, segment)
                sums = _sums(builder, operands, form, inner.index, begin, length, block, end)
                place = builder.mul(builder.add(builder.mul(outer.index, groups), inner.index), constant(BLOCK))
                _scale(
                    builder, operands, form, inner.index, [builder.add(place, each) for each in columns], sums, totals
                )
            for column, total in zip(columns, totals, strict=True):
                emit_store(builder, operands.y, builder.add(results, column), builder.load(total))

    return operation(types.void, (types.intp,) * len(fields(_Operands)), emit)


def _begin(builder: ir.IRBuilder, base: ir.Value, places: list[ir.Value], totals: list[ir.Value]) -> None:
    """Have sums begin with what is at `base`."""
    for total in totals:
        builder.store(number(0.0), total)
    with builder.if_then(builder.icmp_signed("!=", base, constant(0))):
        for place, total in zip(places, totals, strict=True):
            builder.store(emit_load(builder, base, place), total)


def _meta(builder: ir.IRBuilder, operands: _Operands, form: Form, group: ir.Value, word: int, kind: ir.Type) -> Any:
    """A word of what is known of a group of the row."""
    place = builder.add(builder.mul(group, constant(FIRST_DIGIT + form.digits)), constant(word))
    return builder.load(pointer(builder, operands.meta, place, kind))


def _sums(
    builder: ir.IRBuilder,
    operands: _Operands,
    form: Form,
    group: ir.Value,
    begin: ir.Value,
    length: ir.Value,
    block: ir.Value,
    end: ir.Value,
) -> list[ir.Value]:
    """Sums of a group for each register, as float32."""
    # A sum waits for the one before: there are several of each digit, of upper codes and lower ones in turn.
    chains, parts = (4 if form.digits == 1 else 2), (2 if form.is_coded else 1)
    steps = 2 if form.is_coded else 4
    inputs, step_bytes = form.inputs_per_step, form.step_bytes
    # Upper codes stay where they are, 16 times as large, if they need no table.
    stays = form.is_coded and not form.is_looked_up
    sums = [
        [[cgutils.alloca_once(builder, INTS) for _ in range(REGISTERS)] for _ in range(chains)]
        for _ in range(form.digits)
    ]
    for each in (total for digit in sums for chain in digit for total in chain):
        builder.store(ir.Constant(INTS, [0] * LANES), each)
    rows = [
        builder.add(operands.x, builder.add(builder.mul(operands.depth, constant(digit)), begin))
        for digit in range(form.digits)
    ]
    table = load_ints(builder, operands.table, 0) if form.is_looked_up else None
    start = builder.add(block, builder.mul(builder.udiv(begin, constant(inputs)), constant(step_bytes)))
    with cgutils.for_range(builder, builder.udiv(length, constant(steps * inputs))) as loop:
        here = builder.add(start, builder.mul(loop.index, constant(steps * step_bytes)))
        there = builder.add(here, constant(AHEAD_OF_CODES if form.is_coded else AHEAD))
        beyond = builder.icmp_signed(">=", there, end)
        there = builder.add(there, builder.select(beyond, operands.jump, constant(0)))
        behind = builder.mul(loop.index, constant(steps * inputs))
        for step in range(steps):
            emit_prefetch(builder, pointer(builder, there, constant(step * step_bytes), BYTE))
            raw = [load_ints(builder, here, (step * BLOCK + each * LANES)) for each in range(REGISTERS)]
            for part in range(parts):
                if stays:
                    mask = broadcast_byte(15 << 4 * part)
                    weights = [builder.and_(each, mask) for each in raw]
                else:
                    weights = [unsigned(builder, each, form, part, table) for each in raw]
                own = step * parts + part
                for digit, row in enumerate(rows):
                    scalar = builder.load(
                        builder.bitcast(
                            pointer(builder, row, builder.add(behind, constant(4 * own)), BYTE), INT.as_pointer()
                        )
                    )
                    spread = splat_int(builder, scalar)
                    for total, weight in zip(sums[digit][own % chains], weights, strict=True):
                        builder.store(emit_dot(builder, builder.load(total), weight, spread), total)
    found = []
    for each in range(REGISTERS):
        digits = []
        for digit, own_sums in enumerate(sums):
            first = splat_int(builder, _meta(builder, operands, form, group, FIRST_DIGIT + digit, INT))
            low, high = (_added(builder, [chain[each] for chain in own_sums[half::2]]) for half in range(2))
            if stays:
                high = builder.ashr(high, ir.Constant(INTS, [4] * LANES))
            digits.append(builder.add(first, builder.add(low, high)))
        found.append(join_digits(builder, digits))
    return found


def _added(builder: ir.IRBuilder, sums: list[ir.Value]) -> ir.Value:
    found = [builder.load(each) for each in sums]
    return found[0] if len(found) == 1 else builder.add(*found)


def _scale(
    builder: ir.IRBuilder,
    operands: _Operands,
    form: Form,
    group: ir.Value,
    places: list[ir.Value],
    sums: list[ir.Value],
    totals: list[ir.Value],
) -> None:
    """Multiply sums with the scales of a group, and add them and its offsets to the totals."""
    with builder.if_then(builder.icmp_signed("!=", operands.offsets, constant(0))):
        row_sum = emit_splat(builder, _meta(builder, operands, form, group, SUM, FLOAT))
        offsets = load_scales(builder, operands.offsets, places, operands.scale_kind)
        for total, offset in zip(totals, offsets, strict=True):
            builder.store(emit_fma(builder, row_sum, offset, builder.load(total)), total)
    unit = emit_splat(builder, _meta(builder, operands, form, group, UNIT, FLOAT))
    scales = load_scales(builder, operands.scales, places, operands.scale_kind)
    for total, scale, found in zip(totals, scales, sums, strict=True):
        builder.store(emit_fma(builder, builder.fmul(found, unit), scale, builder.load(total)), total)
