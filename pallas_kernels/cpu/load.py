"""From an object file to a call target of XLA's. Needs no compiler, and does not import one."""

from dataclasses import dataclass
from typing import Any

import jax
import llvmlite.binding as llvm

HANDLER = "jaxllm_handler"
"""The function in an object file that XLA calls."""


def target_machine() -> Any:
    """LLVM's idea of this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, reloc="pic", jit=True
    )


@dataclass(frozen=True)
class Loaded:
    """A call target. What it holds must live as long as XLA may call it."""

    name: str
    engine: Any


def load(name: str, code: bytes) -> Loaded:
    """Make the kernel in the object file `code` known to XLA as `name`."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(_pointer(engine.get_function_address(HANDLER))), platform="cpu")
    return Loaded(name, engine)


def _pointer(address: int) -> Any:
    from ctypes import CFUNCTYPE, c_void_p

    return CFUNCTYPE(c_void_p, c_void_p)(address)
