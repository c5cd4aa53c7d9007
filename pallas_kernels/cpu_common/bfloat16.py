"""Products of bfloat16 in pairs, as `vdpbf16ps` of AVX512-BF16 computes them (Intel's Software Developer's Manual).

Each lane of float32 takes two products. Results are rounded to nearest even, and subnormal numbers count as 0, whatever
the mode of the processor: a result depends on nothing but the numbers and their order.
"""

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.integers import splat_int
from jaxllm.pallas_kernels.cpu_common.tiles import Tile
from jaxllm.pallas_kernels.cpu_common.vectors import (
    INT,
    INTS,
    LANES,
    VECTOR,
    emit_load,
    operation,
    pointer,
    vector,
)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not have."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


PAIRS = "bfloat16_pairs"
"""In place of a type's name, for kernels: bfloat16, where two that are multiplied together are adjacent."""

_SHORT = ir.IntType(16)
_SHORTS = ir.VectorType(_SHORT, LANES)
_NARROW = ir.VectorType(_BFloat(), LANES)
_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)


def emit_dot_pairs(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Each lane of `total` plus the two products of its pairs; `a` and `b` are vectors of `LANES` int32."""
    kind = ir.FunctionType(VECTOR, [VECTOR, _PAIRS, _PAIRS])
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * LANES}"
    pairs = [builder.bitcast(each, _PAIRS) for each in (a, b)]
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [total, *pairs])


def load_pairs(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
    """`LANES` pairs from pair `offset` on, as int32, from any alignment."""
    place = builder.bitcast(pointer(builder, address, offset, INT), INTS.as_pointer())
    return builder.load(place, align=4)


def emit_narrow(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Float32 rounded to bfloat16, to nearest even, as 16 bits each. Subnormal numbers become 0."""
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * LANES}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_NARROW, [VECTOR]), name)
    return builder.bitcast(builder.call(function, [value]), _SHORTS)


class PairTile(Tile):
    """A tile whose sums take two products at a time."""

    def add(self, rows: list[ir.Value], step: ir.Value, vectors: list[ir.Value]) -> None:  # type: ignore[override]
        """Add pair `step` of every row, a pointer to int32, times the pairs in vectors of int32."""
        totals, builder = iter(self._totals), self._builder
        for row in rows:
            spread = splat_int(builder, builder.load(builder.gep(row, [step])))
            for each in vectors:
                total = next(totals)
                builder.store(emit_dot_pairs(builder, builder.load(total), spread, each), total)


def _emit_load(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
    return emit_load(builder, address, offset, "bfloat16")


def emit_store_narrow(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, value: ir.Value) -> None:
    """Float32 as `LANES` bfloat16, see `emit_narrow`, to any place."""
    place = builder.bitcast(pointer(builder, address, offset, _SHORT), _SHORTS.as_pointer())
    builder.store(emit_narrow(builder, value), place, align=2)


load_narrow = operation(vector, (types.intp, types.intp), _emit_load)
"""`load_narrow(address, offset)`: `LANES` bfloat16 as float32."""
store_narrow = operation(types.void, (types.intp, types.intp, vector), emit_store_narrow)
"""`store_narrow(address, offset, value)`: rounded to bfloat16."""
