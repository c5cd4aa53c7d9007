"""XLA's own estimate of what a compiled program takes, from the cycles that it notes alongside each operation."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")
_BODY = re.compile(r"(body|condition)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+)")


@dataclass(frozen=True)
class Operation:
    """One operation: the name that JAX gave it (its scopes, `/` between), its cycles once, and how often it runs."""

    name: str
    cycles: int
    times: int


@dataclass(frozen=True)
class Choices:
    """What the compiled text does not say of one run.

    `trips(name)` is how often the body of a loop runs, for loops whose count XLA does not know; `branch(name)` is
    which branch of a conditional runs: 0 is that for false. Both get the name that JAX gave the operation.
    """

    trips: Callable[[str], int]
    branch: Callable[[str], int]


def operations(text: str, choices: Choices) -> Iterator[Operation]:
    """All operations that a run executes, in order, of the text of a compiled program for a TPU.

    Calls of Pallas kernels have no estimate, and count nothing.
    """
    computations: dict[str, list[str]] = {}
    entry, lines = "", list[str]()
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            lines = computations[begins[2]] = []
            entry = begins[2] if begins[1] else entry
        elif " = " in line:
            lines.append(line)

    def walk(name: str, times: int) -> Iterator[Operation]:
        for line in computations[name]:
            found = _NAME.search(line)
            scope = found[1] if found else ""
            if " while(" in line:
                parts = dict(_BODY.findall(line))
                limit = _LIMIT.search("\n".join(computations[parts["condition"]]))
                trips = int(limit[1]) if limit else choices.trips(scope)
                yield from walk(parts["condition"], times * (trips + 1))
                yield from walk(parts["body"], times * trips) if trips else ()
            elif " conditional(" in line and (branches := _BRANCHES.search(line)):
                several, if_true, if_false = branches.groups()
                names = [part.strip().lstrip("%") for part in several.split(",")] if several else [if_false, if_true]
                yield from walk(names[choices.branch(scope)], times)
            elif cycles := _CYCLES.search(line):
                yield Operation(scope, int(cycles[1]), times)

    yield from walk(entry, 1)
