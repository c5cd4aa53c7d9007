"""The scalar unit of a TensorCore: what each scalar operation of a bundle computes.

Integers are kept signed, 32 bits. Addresses are Python integers far above that, so that no arithmetic on them wraps:
allocations and operands of the kernel lie where their numbers say, not where the chip would have them.
"""

from collections.abc import Callable

_ADDRESS = 1 << 60
_MASK = (1 << 32) - 1

Value = Callable[[list[int]], int]
"""Reads something from the registers: 32 scalar registers, then the predicates."""

PREDICATES = 32
"""Place of the first predicate register."""


class UnsupportedOperationError(ValueError):
    """The program does something that is not modelled: a scalar operation that is not known."""


def allocation(number: int) -> int:
    """Address of an allocation of the kernel (scratch memory, semaphores)."""
    return (1 << 62) + (number << 34)


def operand_address(index: int) -> int:
    """Address of operand `index`; an odd number of high bits, which a shift of the address keeps recognisable."""
    return (2 * index + 1) << 80


def operand_place(address: int) -> tuple[int | None, int]:
    """Operand in which `address` (shifted left or not) lies, None for another address, and how far from its start."""
    high = address >> 80
    if high <= 0:
        return None, address
    return (high // (high & -high) - 1) // 2, address & ((1 << 80) - 1)


def wrap(value: int) -> int:
    """`value` as a signed number of 32 bits; addresses stay."""
    if -(1 << 31) <= value < 1 << 31 or value >= _ADDRESS:
        return value
    return ((value + (1 << 31)) & _MASK) - (1 << 31)


def unsigned(value: int) -> int:
    """`value` as an unsigned number of 32 bits; addresses stay."""
    return value if value >= _ADDRESS else value & _MASK


def register_index(name: str) -> int:
    """Place of register `s5` or `p3` among the registers."""
    return int(name[1:]) + (PREDICATES if name[0] == "p" else 0)


def value_of(text: str) -> Value:
    """How to read an operand (see `bundles.Operation.args`); a sum of several parts is an address.

    Raises:
        UnsupportedOperationError: The operand is of no known form.
    """
    if "+" in text:
        parts = [value_of(part) for part in text.split("+")]
        return lambda registers: sum(part(registers) for part in parts)
    if text.startswith("!"):
        negated = register_index(text[1:])
        return lambda registers: 1 - registers[negated]
    if text[0] in "sp" and text[1:].isdigit():
        index = register_index(text)
        return lambda registers: registers[index]
    if text.startswith("#"):
        address = allocation(int(text[1:]))
        return lambda _: address
    if text.lstrip("-").isdigit():
        constant = wrap(int(text))
        return lambda _: constant
    raise UnsupportedOperationError(f"operand {text!r}")


_BINARY: dict[str, Callable[[int, int], int]] = {
    "sadd": lambda a, b: wrap(a + b),
    "ssub": lambda a, b: wrap(a - b),
    "smul": lambda a, b: wrap(a * b),
    "sand": lambda a, b: wrap(unsigned(a) & unsigned(b)),
    "sor": lambda a, b: wrap(unsigned(a) | unsigned(b)),
    "sxor": lambda a, b: wrap(unsigned(a) ^ unsigned(b)),
    "sshll": lambda a, b: wrap(unsigned(a) << b) if 0 <= b < 32 else 0,
    "sshrl": lambda a, b: wrap(unsigned(a) >> b) if 0 <= b < 32 else 0,
    "sshra": lambda a, b: a >> min(unsigned(b), 31),
    "scalar_lea": lambda a, b: a + b,
    "pand": lambda a, b: a & b,
    "por": lambda a, b: a | b,
    "pxor": lambda a, b: a ^ b,
    "pnand": lambda a, b: 1 - (a & b),
    "pnor": lambda a, b: 1 - (a | b),
}

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}

NOTHING = ("sphi", "int_to_ptr", "shalt", "sfence", "strace", "ssettm", "sdelay", "snop")
"""Operations with no effect here. A phi and a cast name a register anew that holds the value already."""


def arithmetic(name: str, args: tuple[str, ...]) -> Value | None:
    """The function of an operation that only reads registers; None when `name` is not such an operation."""
    base, _, kind = name.partition(".")
    values = [value_of(arg) for arg in args] if base in _PURE else []
    if base in _BINARY:
        left, right = values
        function = _BINARY[base]
        return lambda registers: function(left(registers), right(registers))
    if base == "smulhi":
        left, right = values
        read = unsigned if kind.startswith("u") else wrap
        return lambda registers: wrap(read(left(registers)) * read(right(registers)) >> 32)
    if base in ("smin", "smax"):
        left, right = values
        choose = min if base == "smin" else max
        key = unsigned if kind.startswith("u") else wrap
        return lambda registers: choose(left(registers), right(registers), key=key)
    if base == "scmp":
        relation, sign = kind.split(".")[:2]
        left, right = values
        compare = _COMPARE[relation]
        read = unsigned if sign.startswith("u") else wrap
        return lambda registers: int(compare(read(left(registers)), read(right(registers))))
    if base == "scalar_select":
        condition, on_true, on_false = values
        return lambda registers: on_true(registers) if condition(registers) else on_false(registers)
    if base in ("smov", "pmov"):
        return values[0]
    if base == "pneg":
        return lambda registers: 1 - values[0](registers)
    if base in ("sabs", "sneg"):
        return lambda registers: abs(values[0](registers)) if base == "sabs" else wrap(-values[0](registers))
    return None


_PURE = {*_BINARY, "smulhi", "smin", "smax", "scmp", "scalar_select", "smov", "pmov", "pneg", "sabs", "sneg"}
