"""From a kernel in Python to an object file: Numba writes LLVM's language, LLVM machine code for this processor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from jaxllm.pallas_kernels.cpu_common.calls import Kernel, entry_points
from jaxllm.pallas_kernels.cpu_common.memory import compiled
from jaxllm.pallas_kernels.cpu_common.trampoline import HANDLER, target_machine

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
    """The object file of a kernel, for `Trampoline.open`."""
    points = entry_points(kernel, _TASK)
    machine = target_machine()
    with _plainly():
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
    _optimise(machine, whole)
    return machine.emit_object(whole)


class _Plain(JITCodeLibrary):  # type: ignore[misc]
    """A function as Numba writes it, without machine code.

    Numba would optimise and load each function with all that it calls, and do so again for each of its callers.
    """

    def _optimize_functions(self, module: llvm.ModuleRef) -> None:
        """Nothing is done."""

    def _optimize_final_module(self) -> None:
        """Nothing is done."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """There is none, but now all that the function calls must be alongside it."""
        self._ensure_finalized()
        return 0


@contextmanager
def _plainly() -> Iterator[None]:
    """Have Numba make `_Plain` functions."""
    with global_compiler_lock:
        own = vars(cpu_target.target_context.codegen())
        own.update(_library_class=_Plain, set_env=lambda name, environment: None)
        try:
            yield
        finally:
            del own["_library_class"], own["set_env"]


def _optimise(machine: Any, whole: llvm.ModuleRef) -> None:
    """All of LLVM's optimisations, for code where only the entry points are called from outside."""
    for function in whole.functions:
        if not function.is_declaration and function.name not in (HANDLER, _TASK):
            function.linkage = llvm.Linkage.internal
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    # Kernels say themselves what is a vector. A tile whose sums fill the registers must not be unrolled: LLVM would
    # load ahead for the second step, and spill sums in every one.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(whole, builder)


def _compile(name: str, function: Callable[[int], int]) -> tuple[str, str]:
    """LLVM assembly of a function of one address, and of a C function `name` that calls it."""
    dispatcher: Any = compiled(function)
    signature = (types.intp,)
    dispatcher.compile(signature)
    inner = dispatcher.overloads[signature].fndesc.llvm_func_name
    return dispatcher.inspect_llvm(signature), _ENTRY.format(inner=inner, name=name)
