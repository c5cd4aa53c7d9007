"""Bytes that a compiled step moves between a TPU's memory and its cores, from the program's text.

Operations read their operands and write their results, once for every run of the loop they are in; a fusion that takes
a slice of an operand reads the slice. What lies in vector memory (`S(1)`) is not counted: what brought it there is. A
kernel reads each of its operands once, of stacks of layers its own layer, as the static method finds for each alone.
Of the KV cache a kernel's reads depend on lengths, which the program does not have: they are left out.
"""

import re
from collections import Counter
from collections.abc import Mapping

from jaxllm.planning.hlo import Instruction, Module, bytes_of
from jaxllm.planning.schedule import trips

_FREE = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id", "iota")
_ARRAY = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")
_FIRST = re.compile(r"\[(\d+),")


def moved_bytes(module: Module, layers: int) -> Counter[str]:
    """Bytes by what moves them: `kernel NAME`, or the kind of an operation."""
    found: Counter[str] = Counter()
    _run(module, module.entry, 1, layers, found)
    return found


def _run(module: Module, name: str, times: int, layers: int, found: Counter[str]) -> None:
    instructions = module.computations[name].instructions
    shapes = {each.name: each.shape for each in instructions}
    for each in instructions:
        if each.kind == "while":
            condition, body = each.called("condition"), each.called("body")
            assert condition is not None
            assert body is not None
            count = trips(module, condition, body)
            _run(module, body, times * (1 if count is None else count), layers, found)
        elif each.kind == "conditional":
            _run(module, each.branches[0], times, layers, found)
        elif each.kind == "call":
            called = each.called("to_apply")
            assert called is not None
            _run(module, called, times, layers, found)
        elif each.kind in _FREE or each.kind.endswith("-done"):
            continue
        elif each.kind == "custom-call":
            what = _kernel(each)
            found[what] += times * _of_kernel(each, shapes, layers, is_attention="attention" in what)
        else:
            found[each.kind] += times * _of_operation(module, each, shapes)


def _in_memory(shape: str) -> int:
    """Bytes of the arrays of a shape that lie in the device's memory."""
    return sum(sum(bytes_of(array)) for array in _ARRAY.findall(shape) if "S(" not in array)


def _kernel(each: Instruction) -> str:
    names = [name for name in re.findall(r"[\w-]+", each.scope) if name != "pallas_call"]
    return f"kernel {names[-1] if names else each.name}"


def _of_kernel(each: Instruction, shapes: Mapping[str, str], layers: int, *, is_attention: bool) -> int:
    moved = 0
    for shape in (*(shapes.get(name, "") for name in each.inputs), *_ARRAY.findall(each.shape)):
        first = _FIRST.search(shape)
        is_stack = first is not None and int(first[1]) == layers and shape.count(",") > 2
        moved += 0 if is_stack and is_attention else _in_memory(shape) // (layers if is_stack else 1)
    return moved


def _of_operation(module: Module, each: Instruction, shapes: Mapping[str, str]) -> int:
    sources = [shapes.get(name, "") for name in each.inputs]
    if each.kind in ("dynamic-slice", "slice", "gather"):
        return 2 * _in_memory(each.shape)
    if each.kind == "dynamic-update-slice":
        return 2 * _in_memory(sources[1])
    called = each.called("calls") if each.kind in ("fusion", "async-start") else None
    if each.kind in ("call-start", "scatter"):
        # In place: rows of the first operand are replaced.
        return 2 * sum(map(_in_memory, sources[1:]))
    if called is None:
        return sum(map(_in_memory, sources)) + _in_memory(each.shape)
    inside = module.computations[called].instructions
    users: dict[str, list[Instruction]] = {}
    for other in inside:
        for name in other.inputs:
            users.setdefault(name, []).append(other)
    places = {int(own.operands): own.name for own in inside if own.kind == "parameter"}
    moved, written = 0, _in_memory(each.shape)
    for place, source in enumerate(sources):
        size, by = _in_memory(source), users.get(places.get(place, ""), [])
        slices = [user for user in by if user.kind in ("dynamic-slice", "slice", "gather")]
        updated = [user for user in by if user.kind == "dynamic-update-slice" and user.inputs[0] == places[place]]
        if by and len(slices) == len(by):
            size = min(size, sum(sum(bytes_of(user.shape)) for user in slices))
        elif by and len(updated) == len(by):
            # In place: what it writes is the update.
            own = {other.name: other.shape for other in inside}
            written -= size
            size = 2 * sum(sum(bytes_of(own[user.inputs[1]])) for user in updated)
        moved += size
    return moved + max(written, 0)
