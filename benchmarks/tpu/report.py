"""From a run of a compiled kernel to the figures of a case: time, bytes, trips of the inner loop, what holds it up."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tpu.bundles import Program, read_program
from benchmarks.tpu.cases import Case
from benchmarks.tpu.simulate import Memory, Run, simulate
from jaxllm.pallas_kernels.chips import Chip

DMA_SECONDS = 0.5e-6
"""Assumed from the last byte of a DMA to the end of a wait for it. No public figure is known."""


@dataclass(frozen=True)
class Loop:
    """A loop of a kernel.

    Attributes:
        depth: 1 for a loop in no other.
        first: Its first bundle.
        last: Its last bundle (the last delay slot of the branch back).
        entries: How often it was entered.
        trips: How often its body ran, all entries together.
        bundles: Bundles executed in it outside the loops in it.
    """

    depth: int
    first: int
    last: int
    entries: int
    trips: int
    bundles: int


def loops(program: Program, run: Run) -> list[Loop]:
    """The loops of `program` that ran, in order of their first bundle."""
    backward = {edge: count for edge, count in run.taken.items() if edge[1] <= edge[0]}
    spans = sorted({(target, branch + program.delay_slots) for branch, target in backward})
    found = []
    for first, last in spans:
        again = sum(count for (branch, target), count in backward.items() if target == first)
        inner = [span for span in spans if first <= span[0] and span[1] <= last and span != (first, last)]
        own = sum(
            run.visits[index]
            for index in range(first, last + 1)
            if not any(begin <= index <= end for begin, end in inner)
        )
        depth = sum(begin <= first and last <= end for begin, end in spans)
        found.append(Loop(depth, first, last, run.visits[first] - again, run.visits[first], own))
    return found


def utilization(program: Program, run: Run, first: int, last: int) -> dict[str, float]:
    """Share of the slots of each unit that are filled in the executed bundles from `first` to `last`."""
    counts = run.visits[first : last + 1]
    executed = sum(counts) or 1
    bundles = program.bundles[first : last + 1]
    filled = {
        unit: sum(count * bundle.slots[place] for count, bundle in zip(counts, bundles, strict=True))
        for place, unit in enumerate(program.units)
    }
    return {
        unit: filled[unit] / (executed * slots) for unit, slots in zip(program.units, program.capacity, strict=True)
    }


@dataclass(frozen=True)
class KernelFigures:
    """One Pallas kernel of a call: its time and its busiest loop (see `Loop`), with the units' shares there.

    `matrix` is the cycles in which all matrix units take rows, whether or not the rows and columns are all of use.
    """

    name: str
    cycles: float
    stalled: float
    matrix: float
    dmas: int
    bytes_read: int
    bytes_written: int
    trips: int
    bundles_per_trip: float
    units: dict[str, float]


@dataclass(frozen=True)
class Figures:
    """One case on one chip with one kernel.

    Attributes:
        microseconds: Of the Pallas kernels.
        outside: Microseconds of the operations around them, by XLA's own estimate.
        bytes_over_least: Bytes moved over the fewest possible.
        bandwidth_share: The fewest bytes over what memory could move in that time.
        flops_share: The fewest operations over what the matrix units could do in that time.
        mxu: Share of the time in which the matrix units take rows, padding included.
        bottleneck: What is busiest.
        choices: Block sizes.
        kernels: Per Pallas kernel.
    """

    chip: str
    kernel: str
    case: str
    microseconds: float
    outside: float
    bytes_over_least: float
    bandwidth_share: float
    flops_share: float
    mxu: float
    bottleneck: str
    choices: str
    kernels: tuple[KernelFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, rounded to what is significant."""
        rounded = _rounded(dataclasses.asdict(self))
        assert isinstance(rounded, dict)
        return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def memory_of(chip: Chip) -> Memory:
    """The memory model of a chip."""
    granule = 512 if chip.name == "v4" else 32
    return Memory(chip.hbm_bandwidth / chip.clock_hz, round(DMA_SECONDS * chip.clock_hz), granule)


def measure_kernel(program: Program, name: str, operands: Sequence[Sequence[int] | None], chip: Chip) -> KernelFigures:
    """Simulate one kernel and find its busiest loop (the whole kernel where there is none).

    A bundle can wait for a matrix unit that is still busy, which the program does not show: the core is taken to be
    busy at least as long as the matrix units need for the rows that are pushed.
    """
    run = simulate(program, operands, memory_of(chip))
    last = len(program.bundles) - 1
    whole = Loop(0, 0, last, 1, 1, sum(run.visits))
    rows = sum(count * bundle.rows for count, bundle in zip(run.visits, program.bundles, strict=False))
    matrix = rows / (chip.mxus * chip.mxu_rows)
    busiest = max(loops(program, run), key=lambda loop: loop.bundles, default=whole)
    return KernelFigures(
        name=name,
        cycles=max(run.cycles, matrix + run.stalled),
        stalled=run.stalled,
        matrix=matrix,
        dmas=run.dmas,
        bytes_read=run.bytes_read,
        bytes_written=run.bytes_written,
        trips=busiest.trips,
        bundles_per_trip=busiest.bundles / busiest.trips,
        units=utilization(program, run, busiest.first, busiest.last),
    )


def measure(chip: Chip, kernel: str, case: Case, folder: Path, module: dict[str, Any]) -> Figures:
    """The figures of a case from the dumps in `folder` and what the compilation left in `module`."""
    parts = tuple(
        measure_kernel(read_program(folder, part["name"], chip.name), part["name"], part["operands"], chip)
        for part in module["kernels"]
    )
    cycles = sum(part.cycles for part in parts)
    seconds = cycles / chip.clock_hz
    moved = sum(part.bytes_read + part.bytes_written for part in parts)
    return Figures(
        chip=chip.name,
        kernel=kernel,
        case=case.name,
        microseconds=seconds * 1e6,
        outside=sum(module["other_cycles"].values()) / chip.clock_hz * 1e6,
        bytes_over_least=moved / case.least_bytes(),
        bandwidth_share=case.least_bytes() / chip.hbm_bandwidth / seconds,
        flops_share=case.flops() / chip.bf16_flops / seconds,
        mxu=sum(part.matrix for part in parts) / cycles,
        bottleneck=_bottleneck(parts, cycles),
        choices=module["choices"],
        kernels=parts,
    )


def _bottleneck(parts: Sequence[KernelFigures], cycles: float) -> str:
    """DMA where the core waits for a fifth of the time, else the fullest unit of the longest kernel's busiest loop."""
    stalled = sum(part.stalled for part in parts) / cycles
    if stalled > 0.2:
        return f"DMA (waits {stalled:.0%})"
    units = max(parts, key=lambda part: part.cycles).units
    names = sorted((unit for unit in units if ":" not in unit), key=lambda unit: -units[unit])[:2]
    return ", ".join(f"{name} {units[name]:.0%}" for name in names)


def table(rows: Sequence[Figures]) -> str:
    """Markdown: one line per case and kernel."""
    lines = [
        "| case | kernel | µs | outside | bandwidth | peak | MXU busy | bytes | trips | bundles/trip | busiest |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        longest = max(row.kernels, key=lambda part: part.cycles)
        lines.append(
            f"| {row.case} | {row.kernel} | {row.microseconds:.1f} | {row.outside:.1f} | {row.bandwidth_share:.0%} "
            f"| {row.flops_share:.0%} | {row.mxu:.0%} | {row.bytes_over_least:.2f} | {longest.trips} "
            f"| {longest.bundles_per_trip:.0f} | {row.bottleneck} |"
        )
    return "\n".join(lines)
