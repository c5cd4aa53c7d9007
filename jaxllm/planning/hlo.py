"""The text of a program that XLA has compiled and scheduled, as computations of operations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \((.*)\) -> .*\{$")
_SHAPE = re.compile(r"\b(pred|[a-z]+?(\d+)\w*)\[([\d,]*)\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r"%([\w.-]+)")


@dataclass(frozen=True)
class Instruction:
    """One operation.

    `shape` is its result as XLA writes it, `operands` what stands between the parentheses, `attributes` what follows.
    """

    name: str
    kind: str
    shape: str
    operands: str
    attributes: str

    @property
    def inputs(self) -> list[str]:
        """Names of the operands."""
        return _OPERAND.findall(self.operands)

    @property
    def cycles(self) -> int:
        """XLA's estimate; 0 where it has none: collectives, kernels, and what takes no time."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else 0

    @property
    def scope(self) -> str:
        """The name that JAX gave it, with `/` between the scopes."""
        found = _NAME.search(self.attributes)
        return found[1] if found else ""

    def called(self, *roles: str) -> str | None:
        """The computation that it calls as `body`, `condition`, `calls`, ..., the first role that it has."""
        for role in roles:
            found = re.search(rf"\b{role}=%?([\w.-]+)", self.attributes)
            if found:
                return found[1]
        return None

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional; the first is that for false or 0."""
        found = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if found:
            return _OPERAND.findall(found[1])
        names = (self.called("false_computation"), self.called("true_computation"))
        return [name for name in names if name is not None]


@dataclass(frozen=True)
class Computation:
    """Operations in the order in which they run, and the shapes of the parameters as XLA writes them."""

    parameters: str
    instructions: Sequence[Instruction]


@dataclass(frozen=True)
class Module:
    """All computations by name."""

    computations: Mapping[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """The module that `jax.stages.Compiled.as_text` writes."""
    computations: dict[str, Computation] = {}
    entry, instructions = "", list[Instruction]()
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            instructions = []
            computations[begins[2]] = Computation(begins[3], instructions)
            entry = begins[2] if begins[1] else entry
        elif line.startswith("  ") and " = " in line:
            instructions.append(_instruction(line))
    return Module(computations, entry)


def bytes_of(shapes: str) -> list[int]:
    """Bytes of every array in a text with shapes, without the padding of layouts."""
    found = []
    for kind, bits, sizes in _SHAPE.findall(shapes):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        found.append(count if kind == "pred" else count * int(bits) // 8)
    return found


def _instruction(line: str) -> Instruction:
    name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    kind = rest[: rest.index("(")]
    end = _closing(rest, len(kind))
    return Instruction(name.lstrip("%"), kind, shape, rest[len(kind) + 1 : end], rest[end + 1 :])


def _closing(text: str, start: int) -> int:
    """Where the parenthesis at `start` closes."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if not depth:
            return index
    raise ValueError(f"a parenthesis that does not close: {text[start : start + 80]}")
