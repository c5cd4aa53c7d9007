"""The function that XLA calls by a kernel's name, known to it before the kernel is compiled.

XLA wants to know its call targets before it compiles what calls them. A trampoline is a function of a few instructions
that answers XLA's questions itself and passes calls on to the kernel, whose address it is told when there is one. So a
kernel and what calls it can be compiled at the same time.

The places of fields in XLA's structures, in words of 64 bits, are those of xla/ffi/api/c_api.h, which jaxlib has.
"""

from ctypes import CFUNCTYPE, c_int64, c_void_p
from typing import Any

import jax
import llvmlite.binding as llvm

HANDLER = "jaxllm_handler"
"""The function in an object file that a trampoline passes calls on to. It takes a call frame, and returns 0."""

_TARGET, _TRAMPOLINE = "jaxllm_target", "jaxllm_trampoline"
_MESSAGE = "the kernel is still being compiled"

_CODE = f"""
@{_TARGET} = global i64 0, align 8
@message = private constant [{len(_MESSAGE) + 1} x i8] c"{_MESSAGE}\\00"

define ptr @{_TRAMPOLINE}(ptr %frame) {{
  %extension.at = getelementptr i64, ptr %frame, i64 1
  %extension = load ptr, ptr %extension.at
  %api.at = getelementptr i64, ptr %frame, i64 2
  %api = load ptr, ptr %api.at
  %no_extension = icmp eq ptr %extension, null
  br i1 %no_extension, label %call, label %extended

extended:
  %kind.at = getelementptr i32, ptr %extension, i64 2
  %kind = load i32, ptr %kind.at
  %is_metadata = icmp eq i32 %kind, 1
  br i1 %is_metadata, label %describe, label %call

; Which version of the interface it speaks: XLA's own. And no traits.
describe:
  %metadata.at = getelementptr i64, ptr %extension, i64 3
  %metadata = load ptr, ptr %metadata.at
  %version.at = getelementptr i64, ptr %api, i64 4
  %version = load i64, ptr %version.at
  %version.to = getelementptr i64, ptr %metadata, i64 3
  store i64 %version, ptr %version.to
  %traits = getelementptr i32, ptr %metadata, i64 8
  store i32 0, ptr %traits
  ret ptr null

call:
  %stage.at = getelementptr i64, ptr %frame, i64 4
  %stage = load i32, ptr %stage.at
  %is_execution = icmp eq i32 %stage, 3
  br i1 %is_execution, label %execute, label %nothing

nothing:
  ret ptr null

execute:
  %target = load atomic i64, ptr @{_TARGET} acquire, align 8
  %is_missing = icmp eq i64 %target, 0
  br i1 %is_missing, label %refuse, label %pass

pass:
  %kernel = inttoptr i64 %target to ptr
  %error = call i64 %kernel(ptr %frame)
  %result = inttoptr i64 %error to ptr
  ret ptr %result

; Arguments of the function that makes an error: their size, no extension, a message, and the code for what is internal.
refuse:
  %arguments = alloca [4 x i64]
  store i64 28, ptr %arguments
  %second = getelementptr i64, ptr %arguments, i64 1
  store i64 0, ptr %second
  %third = getelementptr i64, ptr %arguments, i64 2
  store ptr @message, ptr %third
  %fourth = getelementptr i64, ptr %arguments, i64 3
  store i64 13, ptr %fourth
  %create.at = getelementptr i64, ptr %api, i64 6
  %create = load ptr, ptr %create.at
  %refusal = call ptr %create(ptr %arguments)
  ret ptr %refusal
}}
"""


class Trampoline:
    """A call target of XLA's. It must live as long as XLA may call it."""

    def __init__(self, name: str) -> None:
        """Make it known to XLA as `name`, once in a process."""
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_CODE), target_machine())
        self._engine.finalize_object()
        address = self._engine.get_function_address(_TRAMPOLINE)
        handler = jax.ffi.pycapsule(CFUNCTYPE(c_void_p, c_void_p)(address))
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
        self._kernel: Any = None

    def open(self, code: bytes) -> None:
        """Pass calls on to the function `HANDLER` of an object file from now on."""
        self._kernel = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self._kernel.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._kernel.finalize_object()
        target = c_int64.from_address(self._engine.get_global_value_address(_TARGET))
        target.value = self._kernel.get_function_address(HANDLER)


def target_machine() -> Any:
    """LLVM's idea of this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, reloc="pic", jit=True
    )
