"""The compiler's dump of a kernel: VLIW bundles, what each does with its scalar unit, and how full its slots are.

Of the files that `--xla_jf_dump_llo_text=true` writes per kernel two are read: `*-packed-bundles-post-ra.txt`, the
program with registers and addresses (one entry per bundle: address, loop depth as `>`, operations separated by `;;`),
and `*-pre-delay_hlo-static-per-bundle-utilization.txt` (per bundle, how many slots of each unit it fills). Only one
pass comes after, which turns most empty bundles into delays. The text of `*-final_bundles.txt` does not show those: it
lacks cycles, and for TPU7x it does not tell where a branch takes effect. The format is not documented; what is relied
on was found by reading dumps of libtpu 0.0.42.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) +(?:[A-Z]{2})? *: (>*) ?\{", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_OPERATION = re.compile(
    r"(?:%(?P<dest>[a-z]*\d+(?:_[a-z]+\d+)?) = )?(?P<name>[a-z][a-z0-9_.]*(?:<no memory space>)?)(?P<rest>.*)",
    re.DOTALL,
)
_PREDICATE = re.compile(r"\((!?)%p\d+_p(\d+)(?:, ([^()]*))?\)")
_NEVER = re.compile(r" \((0|!1)\)")  # a condition the compiler knows
_TARGET = re.compile(r"target bundleno = (\d+) \(0x[0-9a-f]+\), region = \d+")
_ALWAYS = re.compile(r"^ \((1|!0)\),?")
_DIVISION = re.compile(r"sdivrem\.(\w+) ([^;}/]*)/\* (k\w+) \*/")  # which results it gives is only in the comment
_BUNDLES, _UTILIZATION = "packed-bundles-post-ra", "pre-delay_hlo-static-per-bundle-utilization"

DUMPS = f"({_BUNDLES}|pre-delay)"
"""Regular expression for the compiler's passes whose dumps are read."""

DELAY_SLOTS = {"v4": 1, "v5e": 4, "v5p": 4, "v6e": 4, "tpu7x": 6}
"""Bundles after a branch that are executed whether or not it is taken. As found in dumps: after a branch back to the
start of a loop come that many bundles, empty where there was nothing to do, before the next part of the program."""


@dataclass(frozen=True)
class Predicate:
    """A condition on an operation: predicate register `register`, negated or not."""

    register: int
    negated: bool


@dataclass(frozen=True)
class Operation:
    """A scalar operation, a DMA or a semaphore operation.

    Attributes:
        name: Opcode, such as `sadd.s32`.
        dest: Register written (`s5`, `p3`), empty if none.
        args: Operands as text: `s5`, `p3`, `!p3`, a number, `#4+6` (offset 6 in allocation 4).
        predicate: Condition under which it is executed.
        otherwise: What the register becomes when the condition does not hold, for the select form of `smov`.
        target: Bundle that a branch goes to.
    """

    name: str
    dest: str
    args: tuple[str, ...]
    predicate: Predicate | None = None
    otherwise: str = ""
    target: int = -1


@dataclass(frozen=True)
class Bundle:
    """One VLIW instruction.

    Attributes:
        depth: Number of loops around it.
        operations: What the scalar unit does; vector operations are only counted, in `slots`.
        delay: Further cycles that it waits.
        slots: Slots filled, by unit, in the order of `Program.units`.
        rows: Rows pushed into matrix units: 16 per push of bfloat16, 8 per push of float32.
    """

    depth: int
    operations: tuple[Operation, ...]
    delay: int
    slots: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Program:
    """A kernel: bundles, how many slots of each unit a bundle has, and how many bundles follow a branch in any case."""

    bundles: tuple[Bundle, ...]
    units: tuple[str, ...]
    capacity: tuple[int, ...]
    delay_slots: int


def read_program(folder: Path, kernel: str, chip: str) -> Program:
    """The kernel of that name, compiled for `chip` (a name in `DELAY_SLOTS`), from the dumps in `folder`.

    Raises:
        FileNotFoundError: There is no dump of it.
        ValueError: The two files do not fit together.
    """
    name = re.escape(re.sub(r"[^\w.-]", "_", kernel))
    programs = {}
    for path in sorted(folder.iterdir()):
        for kind in (_BUNDLES, _UTILIZATION):
            if re.fullmatch(rf"\d+-{name}(\.\d+)?-\d+-{kind}\.txt", path.name):
                programs[kind] = path.read_text(encoding="utf-8")
    if len(programs) < 2:
        raise FileNotFoundError(f"no bundle dump of kernel {kernel} in {folder}")
    return parse_program(programs[_BUNDLES], programs[_UTILIZATION], DELAY_SLOTS[chip])


def parse_program(bundles: str, utilization: str, delay_slots: int) -> Program:
    """A program from the text of the two dump files.

    Raises:
        ValueError: They do not describe the same number of bundles.
    """
    units, capacity, rows = _parse_utilization(utilization)
    starts = list(_BUNDLE.finditer(bundles))
    ends = [match.start() for match in starts[1:]] + [len(bundles)]
    if len(starts) != len(rows):
        raise ValueError(f"{len(starts)} bundles, but the utilization of {len(rows)}")
    semaphores: set[str] = set()
    parsed = [
        _parse_bundle(len(match[1]), bundles[match.end() : end], slots, semaphores)
        for match, end, slots in zip(starts, ends, rows, strict=True)
    ]
    return Program(tuple(parsed), units, capacity, delay_slots)


def _parse_utilization(text: str) -> tuple[tuple[str, ...], tuple[int, ...], list[tuple[int, ...]]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    units = tuple(name.strip() for name in lines[0].split(","))
    numbers = [tuple(int(field) for field in line.split()) for line in lines[1:]]
    return units, numbers[0], numbers[1:]


def _parse_bundle(depth: int, chunk: str, slots: tuple[int, ...], semaphores: set[str]) -> Bundle:
    """One bundle; `semaphores` collects the results that are values of semaphores (v4 pops them like vectors)."""
    text = _COMMENT.sub(
        "", _DIVISION.sub(lambda match: f"sdivrem.{match[1]}.{match[3].lower()} {match[2]}", chunk)
    ).strip()
    operations, delay, rows = [], 0, 0
    for part in text[: text.rindex("}")].split(";;"):
        match = _OPERATION.match(part.strip())
        if match is None:
            continue
        name = match["name"]
        if name == "vsyncmov":
            semaphores.add(f"%{match['dest']}")
        if name == "vdelay":
            delay = int(match["rest"])
        elif name.startswith("vmatmul"):
            rows += 8 if ".f32" in name else 16
        elif name == "spop" and match["rest"].strip() in semaphores:
            operations.append(_parse_operation("vpop.sfrf", match["dest"], match["rest"]))
        elif _is_scalar(name) and not _NEVER.match(match["rest"]):
            operations.append(_parse_operation(name, match["dest"] or "", _ALWAYS.sub("", match["rest"])))
    return Bundle(depth, tuple(operations), delay, slots, rows)


def _is_scalar(name: str) -> bool:
    return not name.startswith("v") or name.startswith(("vsync", "vpop.sfrf"))


def _parse_operation(name: str, dest: str, rest: str) -> Operation:
    if name.startswith("inlined_call_operand"):
        index = re.search(r"index: (\d+), kind: (\w+)", rest)
        assert index is not None, rest
        return Operation(name, _register(dest), (index[1], index[2]))
    target = _TARGET.search(rest)
    rest = _TARGET.sub("", re.sub(r"\[thread:\$\d+\]|\[resolvable:\$\w+\]", "", rest))
    predicate, otherwise = None, ""
    for match in _PREDICATE.finditer(rest):
        predicate = Predicate(int(match[2]), match[1] == "!")
        otherwise = _argument(match[3]) if match[3] else ""
        rest = rest.replace(match[0], "")
    # `sst [smem:[address]] value` has no comma between its operands.
    rest = re.sub(r"\[smem:\[(.*?)\]\]", r"<\1>,", rest)
    args = [_argument(part) for part in rest.split(",") if part.strip()]
    number = int(target[1]) if target else -1
    return Operation(name, _register(dest), tuple(args), predicate, otherwise, number)


def _register(dest: str) -> str:
    return dest.rpartition("_")[2] if "_" in dest else ""


def _argument(text: str) -> str:
    text = text.strip()
    if text.startswith("<"):
        return "+".join(_argument(part) for part in text[1:-1].split(" + "))
    # `%s1_s2, 4 [#allocation5]`: the bracket only says where the sum points.
    text = re.sub(r"(?<=[\d]) \[#allocation\d+\]$", "", text)
    if text.startswith("["):
        return "+".join(_argument(part) for part in text[1:-1].split(" + "))
    if register := re.fullmatch(r"(!?)%[sp]\d+_([sp]\d+)", text):
        return register[1] + register[2]
    if allocation := re.fullmatch(r"#allocation(\d+)(?:_spill)?", text):
        return f"#{allocation[1]}"
    if number := re.fullmatch(r"\$?(-?\d+|0x[0-9a-f]+)", text):
        return str(int(number[1], 0))
    return text
