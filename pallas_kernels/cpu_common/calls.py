"""A kernel as a call of XLA's: reading its call frames, and sharing work among its threads.

The frames are those of XLA's FFI (xla/ffi/api/c_api.h, which jaxlib brings along), whose fields keep their places from
version to version. Numbers below are places in them, counted in words of 64 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from jaxllm.pallas_kernels.cpu_common.memory import (
    call,
    compiled,
    external,
    fetch,
    fetch_add,
    set_word,
    word,
)
from jaxllm.pallas_kernels.cpu_common.vectors import WORD, operation, pointer

# XLA_FFI_CallFrame
_API, _CONTEXT, _ARGUMENTS, _RESULTS = 2, 3, 9, 14
# XLA_FFI_Buffer
_DATA, _DIMS = 3, 5
# XLA_FFI_Api
_SCHEDULE, _NUM_THREADS = 17, 18

_NEXT, _FINISHED, _HOLDERS, _ITEMS, _SCRATCH, THREADS = range(6)
FIRST = 6
"""Words of a work descriptor, which all threads of a call share: the next item, items done, threads that may still look
at it, items, bytes of memory that a thread works in, threads of XLA's pool; from `FIRST` on the kernel's own."""

malloc = types.ExternalFunction("malloc", types.intp(types.intp))
free = types.ExternalFunction("free", types.void(types.intp))


def _pointer_chase(*places: int | None) -> Any:
    """A function for kernels that follows words of words, at these places; its parameters take those of None.

    An intrinsic, since Numba would compile a function once more for each number that it is called with.
    """

    def emit(builder: ir.IRBuilder, address: ir.Value, *operands: ir.Value) -> ir.Value:
        rest = iter(operands)
        for place in places:
            offset = next(rest) if place is None else ir.Constant(WORD, place)
            address = builder.load(pointer(builder, address, offset, WORD))
        return address

    return operation(types.intp, (types.intp,) * (1 + places.count(None)), emit)


argument = _pointer_chase(_ARGUMENTS, None, _DATA)
"""`argument(frame, index)`: address of an argument's data."""
result = _pointer_chase(_RESULTS, None, _DATA)
"""`result(frame, index)`: address of a result's data."""
size = _pointer_chase(_ARGUMENTS, None, _DIMS, None)
"""`size(frame, index, axis)`: length of an axis of an argument."""


@compiled
def set_scratch(work: int, size: int) -> None:
    """Have `size` bytes of memory of its own given to every thread that works on a call."""
    set_word(work, _SCRATCH, size)


@compiled
def _threads(frame: int) -> int:
    """Threads of XLA's pool."""
    arguments = malloc(40)
    set_word(arguments, 0, 32)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, word(frame, _CONTEXT))
    set_word(arguments, 3, arguments + 32)
    set_word(arguments, 4, 1)
    call(word(word(frame, _API), _NUM_THREADS), arguments)
    threads = word(arguments, 4)
    free(arguments)
    return threads


@compiled
def _schedule(frame: int, task: int, work: int) -> None:
    """Have a thread of XLA's pool call `task(work)`."""
    arguments = malloc(40)
    set_word(arguments, 0, 40)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, word(frame, _CONTEXT))
    set_word(arguments, 3, task)
    set_word(arguments, 4, work)
    call(word(word(frame, _API), _SCHEDULE), arguments)
    free(arguments)


@compiled
def _leave(work: int) -> None:
    """Whoever looks at a work descriptor last frees it."""
    if fetch_add(work, _HOLDERS, -1) == 1:
        free(work)


@dataclass(frozen=True)
class Kernel:
    """A kernel as Numba functions."""

    words: int
    """Words of the work descriptor that are its own."""
    plan: Callable[[int, int], int]
    """`plan(frame, work)` reads the call frame, puts what items need into the work, and returns the number of items."""
    item: Callable[[int, int, int], None]
    """`item(work, index, scratch)` computes one. Any thread may, in any order."""
    finish: Callable[[int], None]
    """`finish(work)` frees what `plan` has reserved, when all items are done."""


@dataclass(frozen=True)
class EntryPoints:
    """The functions that `trampoline` and XLA's threads call, as Numba functions of one address."""

    handler: Callable[[int], int]
    """Takes the call frame of an execution, returns 0, no error."""
    task: Callable[[int], int]
    """Takes a work descriptor."""


def entry_points(kernel: Kernel, task_symbol: str) -> EntryPoints:
    """The handler of a kernel, and the task that helping threads run, which will be known as `task_symbol`."""
    plan, item, finish, words = kernel.plan, kernel.item, kernel.finish, kernel.words

    @compiled
    def run_items(work: int) -> None:
        items = word(work, _ITEMS)
        index = fetch_add(work, _NEXT, 1)
        if index < items:
            scratch = malloc(word(work, _SCRATCH))
            while index < items:
                item(work, index, scratch)
                fetch_add(work, _FINISHED, 1)
                index = fetch_add(work, _NEXT, 1)
            free(scratch)

    def task(work: int) -> int:
        run_items(work)
        _leave(work)
        return 0

    address_of_task = external(task_symbol)

    def handler(frame: int) -> int:
        work = malloc(8 * (FIRST + words))
        set_word(work, _SCRATCH, 8)
        set_word(work, THREADS, _threads(frame))
        items = plan(frame, work)
        helpers = max(0, min(word(work, THREADS), items) - 1)
        set_word(work, _NEXT, 0)
        set_word(work, _FINISHED, 0)
        set_word(work, _HOLDERS, helpers + 1)
        set_word(work, _ITEMS, items)
        for _ in range(helpers):
            _schedule(frame, address_of_task(), work)
        run_items(work)
        # Only items that another thread has begun are missing: one that begins now finds nothing to do.
        while fetch(work, _FINISHED) < items:
            pass
        finish(work)
        _leave(work)
        return 0

    return EntryPoints(handler, task)
