"""Vectors of float32 for kernels compiled by Numba: the few instructions it has no names for.

A `vector` holds `LANES` numbers in one register. Everything here is an intrinsic: it emits LLVM's own vector operations
in place, so that kernels are plain Python and still say which instructions they mean. Nothing is reordered: every
operation rounds where it stands, so results do not depend on what a compiler finds convenient.

Addresses are plain integers, as XLA hands them over; offsets count elements.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import intrinsic, models, register_model

HAS_AVX512 = bool(llvm.get_host_cpu_features().get("avx512f", False))
LANES = 16 if HAS_AVX512 else 8
"""Numbers in a vector: what one register holds on this machine (two of NEON's)."""

BYTE = ir.IntType(8)
FLOAT = ir.FloatType()
INT = ir.IntType(32)
WORD = ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(INT, LANES)


class VectorType(types.Type):
    """Numba's type of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


vector = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, VECTOR)


def number(value: float) -> ir.Constant:
    """A vector of one number."""
    return ir.Constant(VECTOR, [value] * LANES)


def integer(value: int) -> ir.Constant:
    """Integers of 32 bits, all the same."""
    return ir.Constant(INTS, [value] * LANES)


def pointer(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
    """A pointer to element `offset` of `kind` after `address`."""
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [offset])


def multiples(builder: ir.IRBuilder, step: ir.Value, count: int) -> list[ir.Value]:
    """0, `step`, 2 `step`, ..."""
    return [builder.mul(step, ir.Constant(WORD, index)) for index in range(count)]


def emit_splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """All lanes `scalar`."""
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), integer(0))


def emit_load(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, kind: str = "float32") -> ir.Value:
    """`LANES` numbers of a type `kind` (NumPy's name) as float32, exactly, from any alignment."""
    if kind == "float32":
        place = builder.bitcast(pointer(builder, address, offset, FLOAT), VECTOR.as_pointer())
        return builder.load(place, align=4)
    bits = ir.IntType(16 if kind in ("bfloat16", "float16") else 8)
    narrow = ir.VectorType(bits, LANES)
    place = builder.bitcast(pointer(builder, address, offset, bits), narrow.as_pointer())
    raw = builder.load(place, align=bits.width // 8)
    if kind == "int8":
        return builder.sitofp(raw, VECTOR)
    if kind == "bfloat16":
        return builder.bitcast(builder.shl(builder.zext(raw, INTS), integer(16)), VECTOR)
    if kind == "float16":
        return builder.fpext(builder.bitcast(raw, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    # By way of float16, whose conversion keeps subnormal numbers whatever the mode of the processor. e5m2 is its upper
    # half; e4m3 has its exponent one place further down, with another bias.
    shorts = ir.VectorType(ir.IntType(16), LANES)
    wide = builder.shl(builder.zext(raw, shorts), ir.Constant(shorts, [8] * LANES))
    if kind == "float8_e4m3fn":
        sign, magnitude = (builder.and_(wide, ir.Constant(shorts, [mask] * LANES)) for mask in (0x8000, 0x7F00))
        wide = builder.or_(sign, builder.lshr(magnitude, ir.Constant(shorts, [1] * LANES)))
    value = builder.fpext(builder.bitcast(wide, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    return builder.fmul(value, number(256.0)) if kind == "float8_e4m3fn" else value


def emit_store(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, value: ir.Value) -> None:
    """`value` as `LANES` float32 of any alignment."""
    place = builder.bitcast(pointer(builder, address, offset, FLOAT), VECTOR.as_pointer())
    builder.store(value, place, align=4)


def _llvm(builder: ir.IRBuilder, name: str, *operands: ir.Value) -> ir.Value:
    """One of LLVM's own functions of vectors."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(operands))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), operands)


def emit_fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """`a * b + c`, rounded once."""
    return _llvm(builder, "fma", a, b, c)


def emit_maximum(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The larger one, lane by lane; scalars likewise. Not for NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def emit_folds(builder: ir.IRBuilder, values: list[ir.Value], combine: Any) -> list[ir.Value]:
    """One scalar of all lanes for each of `values`: halves are combined until one number is left.

    Several vectors are folded together, which takes a third of the instructions; in whatever company a vector is
    folded, the order of its operations is the same.
    """
    owners = [[index] * LANES for index in range(len(values))]  # whose number each lane holds
    width = LANES
    while width > 1:
        width //= 2
        values, owners = _fold_once(builder, values, owners, width, combine)
    scalars: dict[int, ir.Value] = {}
    for value, lanes in zip(values, owners, strict=True):
        for lane, owner in enumerate(lanes):
            if owner not in scalars:
                scalars[owner] = builder.extract_element(value, ir.Constant(INT, lane))
    return [scalars[index] for index in range(len(scalars))]


def emit_fold_all(builder: ir.IRBuilder, values: list[ir.Value], combine: Any) -> ir.Value:
    """A vector of what `emit_folds` makes of `LANES` vectors, in their order."""
    owners = [[index] * LANES for index in range(LANES)]
    width = LANES
    while width > 1:
        width //= 2
        values, owners = _fold_once(builder, values, owners, width, combine)
    order = [owners[0].index(index) for index in range(LANES)]
    return builder.shuffle_vector(values[0], values[0], ir.Constant(INTS, order))


def _fold_once(
    builder: ir.IRBuilder, values: list[ir.Value], owners: list[list[int]], width: int, combine: Any
) -> tuple[list[ir.Value], list[list[int]]]:
    """Each owner's `2 * width` lanes become `width`; pairs of vectors become one."""
    groups = range(0, LANES, 2 * width)
    lower = [start + lane for start in groups for lane in range(width)]
    folded, belong = [], []
    for first in range(0, len(values), 2):
        pair = values[first : first + 2]
        # A last vector without a partner is folded onto itself.
        second = LANES if len(pair) == 2 else 0
        halves = (
            builder.shuffle_vector(
                pair[0],
                pair[-1],
                ir.Constant(INTS, [lane + shift for lane in lower] + [lane + shift + second for lane in lower]),
            )
            for shift in (0, width)
        )
        folded.append(combine(*halves))
        belong.append([owners[first][lane] for lane in lower] + [owners[first + len(pair) - 1][lane] for lane in lower])
    return folded, belong


def emit_fold(builder: ir.IRBuilder, value: ir.Value, combine: Any) -> ir.Value:
    """One scalar of all lanes."""
    return emit_folds(builder, [value], combine)[0]


def emit_keep(builder: ir.IRBuilder, x: ir.Value, begin: ir.Value, end: ir.Value, other: ir.Value) -> ir.Value:
    """The lanes of x from `begin` up to `end` (int64, of any size), and in all others the scalar `other`."""
    wide = ir.VectorType(WORD, LANES)
    lanes = ir.Constant(wide, list(range(LANES)))

    def splat(value: ir.Value) -> ir.Value:
        one = builder.insert_element(ir.Constant(wide, ir.Undefined), value, ir.Constant(INT, 0))
        return builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), integer(0))

    inside = builder.and_(builder.icmp_signed(">=", lanes, splat(begin)), builder.icmp_signed("<", lanes, splat(end)))
    return builder.select(inside, x, emit_splat(builder, other))


def emit_prefetch(builder: ir.IRBuilder, place: ir.Value) -> None:
    """Ask for the cache line at a pointer, which will be read soon, in the second cache. It need not exist."""
    function = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT, INT, INT])
    prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
    place = builder.bitcast(place, BYTE.as_pointer())
    builder.call(prefetch, [place, ir.Constant(INT, 0), ir.Constant(INT, 2), ir.Constant(INT, 1)])


_EXP2 = (0.6931469775976778, 0.24022242083111883, 0.05550733744471408, 0.009671512785773833, 0.0013264727252534849)
"""2 ** r = 1 + c1 r + c2 r ** 2 + ..., for r from -1/2 to 1/2."""


def emit_exp2(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x for x up to 127, within two units in the last place; exactly 1 for 0, and 0 below -126.5.

    2 ** n 2 ** r with n whole and r within half of 0. Adding a large number rounds to whole ones, and leaves n where
    shifting makes it an exponent. The polynomial is the one of its degree with the smallest relative error that is 1
    at 0.
    """
    large = number(float(3 << 22) + 127)
    x = emit_maximum(builder, x, number(-127.0))
    shifted = builder.fadd(x, large)
    rest = builder.fsub(x, builder.fsub(shifted, large))
    result = number(_EXP2[-1])
    for coefficient in (*_EXP2[-2::-1], 1.0):
        result = emit_fma(builder, result, rest, number(coefficient))
    return builder.fmul(result, builder.bitcast(builder.shl(builder.bitcast(shifted, INTS), integer(23)), VECTOR))


def operation(result: types.Type, operands: tuple[types.Type, ...], emit: Any) -> Any:
    """A function for kernels that takes `operands` and whose code `emit(builder, *values)` writes."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        value = emit(builder, *arguments)
        return context.get_dummy_value() if result is types.void else value

    # Numba counts the parameters of the function it is given.
    names = "".join(f", operand{index}" for index in range(len(operands)))
    scope: dict[str, Any] = {"signature": result(*operands), "generate": generate}
    exec(f"def operation(context{names}): return signature, generate", scope)
    return intrinsic(scope["operation"])


_word, _real = types.intp, types.float32

load = operation(vector, (_word, _word), emit_load)
store = operation(types.void, (_word, _word, vector), emit_store)
splat = operation(vector, (_real,), emit_splat)
steps = operation(vector, (), lambda builder: ir.Constant(VECTOR, [float(lane) for lane in range(LANES)]))
"""0, 1, 2, ... in the lanes."""
fma = operation(vector, (vector, vector, vector), emit_fma)
add = operation(vector, (vector, vector), lambda builder, a, b: builder.fadd(a, b))
subtract = operation(vector, (vector, vector), lambda builder, a, b: builder.fsub(a, b))
multiply = operation(vector, (vector, vector), lambda builder, a, b: builder.fmul(a, b))
divide = operation(vector, (vector, vector), lambda builder, a, b: builder.fdiv(a, b))
maximum = operation(vector, (vector, vector), emit_maximum)
exp2 = operation(vector, (vector,), emit_exp2)
sum_lanes = operation(_real, (vector,), lambda builder, a: emit_fold(builder, a, builder.fadd))
max_lanes = operation(
    _real, (vector,), lambda builder, a: emit_fold(builder, a, lambda x, y: emit_maximum(builder, x, y))
)
keep = operation(vector, (vector, _word, _word, _real), emit_keep)
