"""Run the scalar side of a compiled kernel: which bundles are executed how often, and when it waits for memory.

One TensorCore issues one bundle per cycle, in order. Its control flow depends on scalars only, and those come from
arguments that are known (lengths, page tables), so that the whole path can be followed without computing a single
vector. Reads of device memory are served in the order of issue at a given bandwidth; so are writes, which do not queue
after reads but take their bytes' time from them. A DMA is complete a given latency after its last byte. A wait on a
semaphore stops the core until enough of them are.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.tpu.bundles import Bundle, Operation, Predicate, Program
from benchmarks.tpu.scalar import (
    NOTHING,
    PREDICATES,
    UnsupportedOperationError,
    Value,
    arithmetic,
    operand_address,
    operand_place,
    register_index,
    unsigned,
    value_of,
    wrap,
)

_LONGEST = 200_000_000


@dataclass(frozen=True)
class Memory:
    """Assumptions of the DMA model.

    Attributes:
        bytes_per_cycle: Bandwidth of device memory over the clock of the core.
        latency: Cycles from the last byte of a DMA to the completion that a wait sees.
        granule: Bytes of the unit in which DMAs count.
    """

    bytes_per_cycle: float
    latency: int
    granule: int = 32


@dataclass
class Run:
    """Counts of a simulated run.

    Attributes:
        visits: How often each bundle was executed.
        taken: How often each branch was taken, by (bundle of the branch, bundle it goes to).
        cycles: From the first bundle to the end.
        stalled: Of those, cycles in which the core waited for DMAs.
        bytes_read: From device memory.
        bytes_written: To device memory.
        dmas: Number of DMAs from and to device memory.
    """

    visits: list[int]
    taken: dict[tuple[int, int], int] = field(default_factory=dict)
    cycles: float = 0.0
    stalled: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    dmas: int = 0


class _Core:
    """State of the scalar unit, its memory, the semaphores and the DMAs in flight."""

    def __init__(self, program: Program, operands: Sequence[Sequence[int] | None], memory: Memory) -> None:
        self.registers = [0] * (PREDICATES + 32)
        self.smem: dict[int, int] = {}
        self.flags: dict[int, int] = {}
        self.flights: dict[int, list[tuple[float, int]]] = {}
        self.operands = operands
        self.memory = memory
        self.now = 0.0
        self.reads_free = 0.0
        self.writes_free = 0.0
        self.branch = -1
        self.divisions: deque[int] = deque()
        self.answers: Iterator[int] = iter(())
        self.in_vectors: int | None = None
        self.program = program
        self.run = Run([0] * (len(program.bundles) + 1))

    def start_dma(self, name: str, granules: int, flag: int, source: int, target: int) -> None:
        size = granules * self.memory.granule
        cycles = size / self.memory.bytes_per_cycle
        end = self.now
        if name.startswith("dma.hbm"):
            end = self.reads_free = max(self.now, self.reads_free) + cycles
            self.run.bytes_read += size
        if name.endswith("hbm"):
            end = self.writes_free = max(self.now, self.writes_free) + cycles
            self.reads_free = max(self.now, self.reads_free) + cycles
            self.run.bytes_written += size
        self.run.dmas += "hbm" in name
        heapq.heappush(self.flights.setdefault(flag, []), (end + self.memory.latency, granules))
        if name.endswith("smem"):
            self._fill_smem(source, target, granules)

    def _fill_smem(self, source: int, target: int, granules: int) -> None:
        index, offset = operand_place(source)
        words = self.operands[index] if index is not None and index < len(self.operands) else None
        first, count = (number * self.memory.granule // 4 for number in (offset, granules))
        if words is None and index is None and self.in_vectors is not None:
            self.smem.update((target + place, self.in_vectors) for place in range(count))
            return
        if words is None:
            raise UnsupportedOperationError("scalars are read from memory whose content is not known")
        self.smem.update((target + place, word) for place, word in enumerate(words[first : first + count]))

    def wait(self, flag: int, granules: int) -> None:
        flights = self.flights.get(flag, [])
        arrived = self.flags.get(flag, 0)
        until = self.now
        while flights and (arrived < granules or flights[0][0] <= until):
            moment, size = heapq.heappop(flights)
            until = max(until, moment)
            arrived += size
        if arrived < granules:
            raise UnsupportedOperationError(
                f"a wait for {granules} granules that no DMA brings: {arrived} are under way"
            )
        self.flags[flag] = arrived
        self.run.stalled += until - self.now
        self.now = until


_Action = Callable[[_Core], tuple[int, int] | None]
"""Does one operation; returns (register, value) where one is to be written at the end of the bundle."""


def simulate(
    program: Program,
    operands: Sequence[Sequence[int] | None],
    memory: Memory,
    answers: Iterable[int] = (),
    in_vectors: int | None = None,
) -> Run:
    """Run `program` with the 32-bit words of its operands (None: not known, and never read as a scalar).

    `answers` are the scalars that it asks of vectors, in the order in which it asks; 0 where there are no more.
    `in_vectors` is what every word is that it copies from vector memory to read it as a scalar; None: it copies none.

    Raises:
        UnsupportedOperationError: The path depends on something that is not known or not modelled.
    """
    core = _Core(program, operands, memory)
    core.answers, core.in_vectors = iter(answers), in_vectors
    actions = [_decode(bundle, core) for bundle in program.bundles]
    end = len(program.bundles)
    busy = _next_with_actions(actions)
    elapsed = [0] * (end + 1)
    for index, bundle in enumerate(program.bundles):
        elapsed[index + 1] = elapsed[index] + 1 + bundle.delay
    edges = [0] * (end + 2)
    place, lands = 0, end
    while place < end:
        stop = min(busy[place], lands)
        edges[place] += 1
        core.now += elapsed[stop] - elapsed[place]
        if stop == lands:
            edges[stop] -= 1
            place, lands, core.branch = (core.branch, end, -1) if core.branch >= 0 else (end, end, -1)
            continue
        edges[stop + 1] -= 1
        writes = [action(core) for action in actions[stop]]
        for write in writes:
            if write is not None:
                core.registers[write[0]] = write[1]
        core.now += elapsed[stop + 1] - elapsed[stop]
        if core.branch >= 0 and lands == end:
            lands = stop + 1 + program.delay_slots
            edge = (stop, core.branch)
            core.run.taken[edge] = core.run.taken.get(edge, 0) + 1
        place = stop + 1
        if core.now > _LONGEST:
            raise UnsupportedOperationError(f"no end after {_LONGEST} cycles")
    _sum_visits(core.run.visits, edges)
    core.run.cycles = max(core.now, core.reads_free, core.writes_free)
    return core.run


def _next_with_actions(actions: Sequence[Sequence[_Action]]) -> list[int]:
    following = [len(actions)] * (len(actions) + 1)
    for index in range(len(actions) - 1, -1, -1):
        following[index] = index if actions[index] else following[index + 1]
    return following


def _sum_visits(visits: list[int], edges: Sequence[int]) -> None:
    total = 0
    for index in range(len(visits)):
        total += edges[index]
        visits[index] = total


def _decode(bundle: Bundle, core: _Core) -> list[_Action]:
    useful = [operation for operation in bundle.operations if operation.name.partition(".")[0] not in NOTHING]
    return [_guarded(operation, core) for operation in useful]


def _guarded(operation: Operation, core: _Core) -> _Action:
    action = _action(operation, core)
    if operation.predicate is None:
        return action
    holds = _condition(operation.predicate)
    if operation.otherwise:
        # `smov (p, a), b`: b where p holds, else a.
        other = value_of(operation.otherwise)
        register = register_index(operation.dest)
        return lambda core: action(core) if holds(core.registers) else (register, other(core.registers))
    return lambda core: action(core) if holds(core.registers) else None


def _condition(predicate: Predicate) -> Callable[[list[int]], bool]:
    index, wanted = PREDICATES + predicate.register, int(not predicate.negated)
    return lambda registers: registers[index] == wanted


def _action(operation: Operation, core: _Core) -> _Action:
    name, base = operation.name, operation.name.partition(".")[0]
    if name.startswith("inlined_call_operand"):
        return _operand(operation, core)
    if base == "sbr":
        return lambda core: setattr(core, "branch", operation.target)
    if base == "dma" and not name.startswith("dma.done"):
        return _dma(operation)
    if base == "vpop":
        # Reads a semaphore when the kernel ends, to check that it is zero; here it is.
        register = register_index(operation.dest)
        return lambda core: (register, 0)
    if name.startswith("spop.drf"):
        register = register_index(operation.dest)
        return lambda core: (register, core.divisions.popleft())
    if base == "spop":
        # Of a vector, which is never computed.
        register = register_index(operation.dest)
        return lambda core: (register, next(core.answers, 0))
    if base in _EFFECTS:
        return _effect(name, operation.dest, [value_of(arg) for arg in operation.args])
    value = arithmetic(name, operation.args)
    if value is None:
        raise UnsupportedOperationError(f"operation {name} {', '.join(operation.args)}")
    register = register_index(operation.dest)
    return lambda core: (register, value(core.registers))


_EFFECTS = ("sld", "sst", "vsyncpa", "vsyncadd", "vsyncmov", "dma", "sdivrem")


def _effect(name: str, dest: str, values: Sequence[Value]) -> _Action:
    if name.startswith("sld"):
        register = register_index(dest)
        return lambda core: (register, core.smem.get(values[0](core.registers), 0))
    if name.startswith("sst"):
        return lambda core: core.smem.__setitem__(values[0](core.registers), values[1](core.registers))
    if name.startswith("vsyncpa"):
        return lambda core: core.flags.__setitem__(values[0](core.registers), values[1](core.registers))
    if name.startswith("vsyncadd"):
        return lambda core: _add_flag(core, values[0](core.registers), values[1](core.registers))
    if name.startswith("sdivrem"):
        return lambda core: _divide(core, name, values[0](core.registers), values[1](core.registers))
    if name.startswith("dma.done"):
        return lambda core: core.wait(values[0](core.registers), values[1](core.registers))
    return lambda core: None


def _add_flag(core: _Core, flag: int, amount: int) -> None:
    core.flags[flag] = wrap(core.flags.get(flag, 0) + amount)


def _divide(core: _Core, name: str, left: int, right: int) -> None:
    """Put quotient and remainder (or the one of them that `name` asks for) where they are popped from."""
    _, kind, wanted = name.split(".")
    if kind != "u32":
        raise UnsupportedOperationError(f"operation {name}")
    quotient, remainder = divmod(unsigned(left), unsigned(right)) if right else (-1, left)
    core.divisions += [wrap(quotient)] * ("kdiv" in wanted) + [wrap(remainder)] * ("rem" in wanted)


def _operand(operation: Operation, core: _Core) -> _Action:
    register, index = register_index(operation.dest), int(operation.args[0])
    words = core.operands[index] if index < len(core.operands) else None
    value = operand_address(index)
    if "no memory space" in operation.name:
        if words is None:
            raise UnsupportedOperationError(f"scalar operand {index} is not known")
        value = words[0]
    return lambda core: (register, value)


def _dma(operation: Operation) -> _Action:
    name, values = operation.name, [value_of(arg) for arg in operation.args[:4]]
    source, granules, target, flag = values
    return lambda core: core.start_dma(
        name,
        granules(core.registers),
        flag(core.registers),
        source(core.registers),
        target(core.registers),
    )
