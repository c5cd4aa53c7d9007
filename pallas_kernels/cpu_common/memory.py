"""The functions of kernels, and how they use memory: words by address, atomic counters, calls by pointer."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.vectors import BYTE, FLOAT, INT, WORD, emit_prefetch, operation, pointer

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Decorates what kernels are made of: functions that only other such functions call, and that raise nothing."""
    dispatcher: Any = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return cast(Function, dispatcher)


def _emit_read(kind: ir.Type) -> Any:
    def emit(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
        value = builder.load(pointer(builder, address, offset, kind))
        return builder.sext(value, WORD) if kind in (INT, BYTE) else value

    return emit


def _emit_write(kind: ir.Type) -> Any:
    def emit(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, value: ir.Value) -> None:
        value = builder.trunc(value, kind) if kind in (INT, BYTE) else value
        builder.store(value, pointer(builder, address, offset, kind))

    return emit


def _emit_fetch_add(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, amount: ir.Value) -> ir.Value:
    return builder.atomic_rmw("add", pointer(builder, address, offset, WORD), amount, "seq_cst")


def _emit_fetch(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
    return builder.load_atomic(pointer(builder, address, offset, WORD), "seq_cst", 8)


def _emit_call(builder: ir.IRBuilder, function: ir.Value, argument: ir.Value) -> ir.Value:
    kind = ir.FunctionType(WORD, [WORD])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [argument])


def _emit_zero(builder: ir.IRBuilder, to: ir.Value, size: ir.Value) -> None:
    cgutils.memset(builder, builder.inttoptr(to, BYTE.as_pointer()), size, 0)


_word, _real = types.intp, types.float32

word = operation(_word, (_word, _word), _emit_read(WORD))
"""`word(address, offset)`: the int64 there."""
set_word = operation(types.void, (_word, _word, _word), _emit_write(WORD))
int32 = operation(_word, (_word, _word), _emit_read(INT))
"""The int32 there, as an int64."""
set_int32 = operation(types.void, (_word, _word, _word), _emit_write(INT))
byte = operation(_word, (_word, _word), _emit_read(BYTE))
"""The byte there, as an int64, with a sign."""
set_byte = operation(types.void, (_word, _word, _word), _emit_write(BYTE))
real = operation(_real, (_word, _word), _emit_read(FLOAT))
"""The float32 there."""
set_real = operation(types.void, (_word, _word, _real), _emit_write(FLOAT))
zero_bytes = operation(types.void, (_word, _word), _emit_zero)
"""`zero_bytes(to, size)`."""
fetch = operation(_word, (_word, _word), _emit_fetch)
"""The int64 there, which other threads change."""
fetch_add = operation(_word, (_word, _word, _word), _emit_fetch_add)
"""Add to an int64 that other threads change too; what it was before."""
fetch_line = operation(
    types.void, (_word,), lambda builder, address: emit_prefetch(builder, builder.inttoptr(address, BYTE.as_pointer()))
)
"""Have the cache line at an address fetched, which need not exist."""
call = operation(_word, (_word, _word), _emit_call)
"""`call(function, argument)`: a C function at an address that takes and returns a word."""


def external(name: str) -> Any:
    """A function for kernels: the address of the symbol `name`, see `llvmlite.binding.add_symbol`."""

    def emit(builder: ir.IRBuilder) -> ir.Value:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(WORD, [WORD]), name)
        return builder.ptrtoint(function, WORD)

    return operation(_word, (), emit)
