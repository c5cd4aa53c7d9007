"""The time of a compiled step, from XLA's own estimate of each operation and from what devices send each other.

XLA notes cycles alongside most operations of a program for TPUs, and the order in which they run. It notes none for
collectives, which take here what `jaxllm.planning.links` says, for copies between memories, which take the memory's
bandwidth, and for kernels, which count nothing unless they are in `MOVING`. What has a start and a done runs alongside
the operations between them.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from jaxllm.planning.hlo import Instruction, Module, bytes_of
from jaxllm.planning.links import Network, gather_seconds, sum_seconds

_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]<=)")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_AXIS_SIZE = re.compile(r"'(\w+)'=(\d+)")
_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")
_INPUTS = re.compile(r"operand_layout_constraints=\{(.*?\})\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


MOVING = ("rotate_and_pack", "unpack_results")
"""Kernels that take as long as their bytes need, and `START_SECONDS`: so says the static method (docs/kernels.md)."""

START_SECONDS = 1e-6
"""From the start of a kernel to its first bytes, and from the last ones to its end."""


@dataclass(frozen=True)
class Choices:
    """The facts of one run that are not in the compiled text.

    `trips(name)` is how often the body of a loop runs, for loops whose count XLA does not know; `branch(name)` is
    which branch of a conditional runs: 0 is that for false. Both get the name that JAX gave the operation. The defaults
    are what a step does whose requests have no penalties, no bias and no log-probabilities.
    """

    trips: Callable[[str], int] = lambda _: 1
    branch: Callable[[str], int] = lambda _: 0


_USUAL = Choices()


@dataclass(frozen=True)
class Collective:
    """One collective operation of a program: how often a run executes it, and the bytes of the whole array.

    `devices` take part in it together.
    """

    kind: str
    size: int
    times: int
    asynchronous: bool
    seconds: float
    """On the way, all times together."""
    devices: int = 0


@dataclass(frozen=True)
class ProgramCost:
    """Seconds of one run, without most kernels.

    `computing` is the sum of XLA's estimates and of kernels in `MOVING`, `exposed` what the device waits for
    collectives, `copying` for copies between its memories.
    """

    computing: float
    exposed: float
    copying: float
    collectives: tuple[Collective, ...]

    @property
    def seconds(self) -> float:
        """The whole run."""
        return self.computing + self.exposed + self.copying


def trips(module: Module, condition: str, body: str) -> int | None:
    """How often a loop runs: the constant that its condition compares with, in steps of its counter; None without."""
    limits = [limit for each in module.computations[condition].instructions for limit in _constants(each)]
    return -(-limits[0] // _step(module, condition, body)) if limits else None


def program_cost(module: Module, network: Network, choices: Choices = _USUAL) -> ProgramCost:
    """One run of the module on the devices of a network."""
    run = _Run(module, network, choices)
    run.computation(module.entry, 1)
    return ProgramCost(run.computing, run.exposed, run.copying, tuple(run.collectives))


@dataclass
class _Run:
    """A clock that goes through a program."""

    module: Module
    network: Network
    choices: Choices
    now: float = 0
    computing: float = 0
    exposed: float = 0
    copying: float = 0
    collectives: list[Collective] = field(default_factory=list)
    _arrivals: dict[str, tuple[float, str]] = field(default_factory=dict)
    _memory_free: float = 0

    def computation(self, name: str, times: int) -> None:
        """Run one, which stands for `times` runs."""
        for each in self.module.computations[name].instructions:
            if each.kind == "while":
                self._loop(each, times)
            elif each.kind == "conditional":
                self.computation(each.branches[self.choices.branch(each.scope)], times)
            elif each.kind.endswith("-done"):
                self._wait(each, times)
            elif each.kind.endswith("-start"):
                self._start(each, times)
            elif collective := self._collective(each, times):
                self._add(collective)
                self.exposed += collective.seconds
                self.now += collective.seconds / times
            else:
                self._compute(each, times)

    def _compute(self, each: Instruction, times: int) -> None:
        chip = self.network.chip
        seconds = each.cycles / chip.clock_hz
        if each.kind == "custom-call" and each.name.startswith(MOVING):
            inputs = _INPUTS.search(each.attributes)
            moved = bytes_of(each.shape) + bytes_of(inputs[1] if inputs else each.operands)
            seconds = sum(moved) / chip.hbm_bandwidth + START_SECONDS
        self.computing += seconds * times
        self.now += seconds

    def _loop(self, loop: Instruction, times: int) -> None:
        condition, body = loop.called("condition"), loop.called("body")
        assert condition is not None
        assert body is not None
        count = self._trips(loop, condition, body)
        if count:
            self.computation(body, times)
        if count > 1:
            # The first trip waits for what was sent before; all others are alike.
            before = self.now
            self.computation(body, times * (count - 1))
            passed = (self.now - before) * (count - 2)
            self.now += passed
            self._memory_free += passed
            self.network.pass_time(passed)

    def _trips(self, loop: Instruction, condition: str, body: str) -> int:
        found = trips(self.module, condition, body)
        return self.choices.trips(loop.scope) if found is None else found

    def _start(self, start: Instruction, times: int) -> None:
        size = max(bytes_of(start.operands) or [0]) or max(bytes_of(start.shape) or [0])
        if start.kind == "collective-permute-start":
            pairs = [(int(source), int(target)) for source, target in _PAIR.findall(_pairs(start))]
            self._send(start, size, pairs, times)
        elif collective := self._collective(start, times):
            self._add(replace(collective, asynchronous=True))
            self._arrivals[start.name] = (self.now + collective.seconds / times, "exposed")
        elif start.kind in ("copy-start", "slice-start"):
            moved = sum(bytes_of(start.shape)) - size if start.kind == "slice-start" else size
            self._memory_free = max(self.now, self._memory_free) + moved / self.network.chip.hbm_bandwidth
            self._arrivals[start.name] = (self._memory_free, "copying")

    def _send(self, start: Instruction, size: int, pairs: list[tuple[int, int]], times: int) -> None:
        arrival = self.network.permute(self.now, size, pairs)
        seconds = (arrival - self.now) * times
        self._add(Collective("collective-permute", size, times, asynchronous=True, seconds=seconds))
        self._arrivals[start.name] = (arrival, "exposed")

    def _wait(self, done: Instruction, times: int) -> None:
        arrival, why = self._arrivals.get(done.inputs[0] if done.inputs else "", (self.now, "exposed"))
        waited = max(arrival - self.now, 0)
        setattr(self, why, getattr(self, why) + waited * times)
        self.now += waited

    def _add(self, new: Collective) -> None:
        for index, known in enumerate(self.collectives):
            if _what(known) == _what(new):
                summed = replace(known, times=known.times + new.times, seconds=known.seconds + new.seconds)
                self.collectives[index] = summed
                return
        self.collectives.append(new)

    def _collective(self, each: Instruction, times: int) -> Collective | None:
        """The bytes that an operation sends, be it a collective or a fusion with one; None if it sends nothing."""
        kind, size = each.kind.removesuffix("-start"), max(bytes_of(each.shape) or [0])
        called = each.called("calls") if each.kind in ("fusion", "async-start", "call-start") else None
        inside: Sequence[Instruction] = ()
        if called is not None:
            inside = self.module.computations[called].instructions
            kind = next(_kinds(inside), "")
            kind = "reduce-scatter" if called.startswith("all-reduce-scatter") else kind
            size = max(size, *bytes_of(self.module.computations[called].parameters), 0)
        if kind not in _COLLECTIVES:
            return None
        devices = _group_size(each, inside) or len(self.network.positions)
        if kind == "reduce-scatter" and called is None:
            size *= devices
        seconds = (sum_seconds if kind == "all-reduce" else gather_seconds)(self.network.chip, devices, size)
        return Collective(kind, size, times, asynchronous=False, seconds=seconds * times, devices=devices)


def _what(each: Collective) -> tuple[str, int, bool, int]:
    return each.kind, each.size, each.asynchronous, each.devices


def _group_size(each: Instruction, inside: Sequence[Instruction]) -> int | None:
    """How many devices take part in a collective together, which may be `inside` a fusion; None if it does not say."""
    for instruction in (each, *inside):
        if instruction is not each and instruction.kind.removesuffix("-start") not in _COLLECTIVES:
            continue
        found = _GROUPS.search(instruction.attributes)
        if found:
            return found[1].count(",") + 1 if found[1] else int(found[2])
        found = _MESH_GROUPS.search(instruction.attributes)
        if found:
            # As XLA writes them since JAX 0.12: the axes of a mesh, or a part of an axis with its size.
            sizes = dict(_AXIS_SIZE.findall(found[1]))
            return math.prod(int(part or sizes[name]) for name, part in _AXIS.findall(found[2]))
    return None


def _kinds(instructions: Iterable[Instruction]) -> Iterator[str]:
    return (each.kind for each in instructions if each.kind in _COLLECTIVES)


def _pairs(start: Instruction) -> str:
    found = re.search(r"source_target_pairs=\{(.*?\})\}", start.attributes)
    return found[1] if found else ""


def _constants(each: Instruction) -> list[int]:
    is_number = each.kind == "constant" and each.shape.startswith(("s32[]", "u32[]"))
    return [int(each.operands)] if is_number else []


def _step(module: Module, condition: str, body: str) -> int:
    """The increment of the loop's counter in a trip; 1 if that is not an addition of a constant."""
    limit = {each.name: each for each in module.computations[condition].instructions}
    inside = {each.name: each for each in module.computations[body].instructions}
    index = next((found for each in limit.values() if (found := each.called("index"))), None)
    last = module.computations[body].instructions[-1]
    if index is None or last.kind != "tuple" or int(index) >= len(last.inputs):
        return 1
    adding = inside.get(last.inputs[int(index)])
    if adding is None or adding.kind != "add":
        return 1
    return next((value for name in adding.inputs if name in inside for value in _constants(inside[name])), 1)
