"""From a kernel in Python to an object file: Numba writes LLVM's language, LLVM machine code for this processor."""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from numba import types

from jaxllm.pallas_kernels.cpu.calls import Kernel, entry_points
from jaxllm.pallas_kernels.cpu.load import HANDLER, target_machine
from jaxllm.pallas_kernels.cpu.memory import compiled

_TASK = "jaxllm_task"

# What Numba compiles takes a place for its result, and one for an exception, which kernels do not raise.
_ENTRY = """
declare i32 @"{inner}"(ptr, ptr, i64)
define i64 @"{name}"(i64 %argument) {{
  %result = alloca i64
  %exception = alloca ptr
  store i64 0, ptr %result
  %status = call i32 @"{inner}"(ptr %result, ptr %exception, i64 %argument)
  %value = load i64, ptr %result
  ret i64 %value
}}
"""


def build(kernel: Kernel) -> bytes:
    """The object file of a kernel, for `load.load`."""
    # Numba loads what it compiles, though nobody will call it; until parts are linked, one of them lacks the task.
    llvm.add_symbol(_TASK, 8)
    points = entry_points(kernel, _TASK)
    machine = target_machine()
    parts = [
        part
        for name, function in ((HANDLER, points.handler), (_TASK, points.task))
        for part in _compile(name, function)
    ]
    whole = llvm.parse_assembly("")
    whole.triple, whole.data_layout = llvm.get_process_triple(), str(machine.target_data)
    for part in parts:
        whole.link_in(llvm.parse_assembly(part))
    whole.verify()
    return machine.emit_object(whole)


def _compile(name: str, function: Callable[[int], int]) -> tuple[str, str]:
    """LLVM assembly of a function of one address, and of a C function `name` that calls it."""
    dispatcher: Any = compiled(function)
    signature = (types.intp,)
    dispatcher.compile(signature)
    inner = dispatcher.overloads[signature].fndesc.llvm_func_name
    return dispatcher.inspect_llvm(signature), _ENTRY.format(inner=inner, name=name)
