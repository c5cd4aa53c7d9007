"""A kernel as a call of XLA's: reading its call frames, and sharing work among its threads.

The frames are those of XLA's FFI (xla/ffi/api/c_api.h, which jaxlib brings along), whose fields keep their places from
version to version. Numbers below are places in them, counted in words of 64 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from numba import types

from jaxllm.pallas_kernels.cpu.memory import (
    call,
    compiled,
    external,
    fetch,
    fetch_add,
    int32,
    set_int32,
    set_word,
    word,
)

# XLA_FFI_CallFrame
_EXTENSION, _API, _CONTEXT, _STAGE, _ARGUMENTS, _RESULTS = 1, 2, 3, 4, 9, 14
_EXECUTE = 3
_METADATA = 1
# XLA_FFI_Buffer
_DATA, _DIMS = 3, 5
# XLA_FFI_Api
_SCHEDULE, _NUM_THREADS = 17, 18

_NEXT, _FINISHED, _HOLDERS, _ITEMS, _SCRATCH = 0, 1, 2, 3, 4
FIRST = 5
"""Words of a job, what all threads that work on a call share: the next item, items done, threads that may still look at
it, items, bytes of memory that a thread works in; from `FIRST` on the kernel's own."""

malloc = types.ExternalFunction("malloc", types.intp(types.intp))
free = types.ExternalFunction("free", types.void(types.intp))


@compiled
def argument(frame: int, index: int) -> int:
    """Address of an argument's data."""
    return word(word(word(frame, _ARGUMENTS), index), _DATA)


@compiled
def result(frame: int, index: int) -> int:
    """Address of a result's data."""
    return word(word(word(frame, _RESULTS), index), _DATA)


@compiled
def size(frame: int, index: int, axis: int) -> int:
    """Length of an axis of an argument."""
    return word(word(word(word(frame, _ARGUMENTS), index), _DIMS), axis)


@compiled
def set_scratch(job: int, size: int) -> None:
    """Have `size` bytes of memory of its own given to every thread that works on the job."""
    set_word(job, _SCRATCH, size)


@compiled
def _describe(frame: int) -> None:
    """Answer what XLA asks of every handler: which version of the interface it speaks. It speaks XLA's own."""
    metadata = word(word(frame, _EXTENSION), 3)
    version = word(frame, _API) + 32
    set_int32(metadata, 6, int32(version, 0))
    set_int32(metadata, 7, int32(version, 1))
    set_int32(metadata, 8, 0)


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
def _schedule(frame: int, task: int, job: int) -> None:
    """Have a thread of XLA's pool call `task(job)`."""
    arguments = malloc(40)
    set_word(arguments, 0, 40)
    set_word(arguments, 1, 0)
    set_word(arguments, 2, word(frame, _CONTEXT))
    set_word(arguments, 3, task)
    set_word(arguments, 4, job)
    call(word(word(frame, _API), _SCHEDULE), arguments)
    free(arguments)


@compiled
def _leave(job: int) -> None:
    """Whoever looks at a job last frees it."""
    if fetch_add(job, _HOLDERS, -1) == 1:
        free(job)


@dataclass(frozen=True)
class Kernel:
    """A kernel as Numba functions."""

    words: int
    """Words of the job that are its own."""
    plan: Callable[[int, int], int]
    """`plan(frame, job)` reads the call frame, puts what items need into the job, and returns the number of items."""
    item: Callable[[int, int, int], None]
    """`item(job, index, scratch)` computes one. Any thread may, in any order."""
    finish: Callable[[int], None]
    """`finish(job)` frees what `plan` has reserved, when all items are done."""


@dataclass(frozen=True)
class EntryPoints:
    """What XLA calls, as Numba functions of one address."""

    handler: Callable[[int], int]
    """Takes a call frame, returns 0, no error."""
    task: Callable[[int], int]
    """Takes a job."""


def entry_points(kernel: Kernel, task_symbol: str) -> EntryPoints:
    """The handler of a kernel, and the task that helping threads run, which will be known as `task_symbol`."""
    plan, item, finish, words = kernel.plan, kernel.item, kernel.finish, kernel.words

    @compiled
    def work(job: int) -> None:
        items = word(job, _ITEMS)
        index = fetch_add(job, _NEXT, 1)
        if index < items:
            scratch = malloc(word(job, _SCRATCH))
            while index < items:
                item(job, index, scratch)
                fetch_add(job, _FINISHED, 1)
                index = fetch_add(job, _NEXT, 1)
            free(scratch)

    def task(job: int) -> int:
        work(job)
        _leave(job)
        return 0

    address_of_task = external(task_symbol)

    def handler(frame: int) -> int:
        if word(frame, _EXTENSION) != 0 and int32(word(frame, _EXTENSION), 2) == _METADATA:
            _describe(frame)
            return 0
        if int32(frame, 2 * _STAGE) != _EXECUTE:
            return 0
        job = malloc(8 * (FIRST + words))
        set_word(job, _SCRATCH, 8)
        items = plan(frame, job)
        helpers = max(0, min(_threads(frame), items) - 1)
        set_word(job, _NEXT, 0)
        set_word(job, _FINISHED, 0)
        set_word(job, _HOLDERS, helpers + 1)
        set_word(job, _ITEMS, items)
        for _ in range(helpers):
            _schedule(frame, address_of_task(), job)
        work(job)
        # Only items that another thread has begun are missing: one that begins now finds nothing to do.
        while fetch(job, _FINISHED) < items:
            pass
        finish(job)
        _leave(job)
        return 0

    return EntryPoints(handler, task)
