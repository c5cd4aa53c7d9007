"""Memory at the right times: no collections while an engine starts, and what a start needed is given back after it."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""Number of new objects before a collection. One step of 1,000 streams makes several thousand. All are gone, without
any collection, when it is sent: with Python's own 700, it would look for garbage three times a step."""


@contextmanager
def paused() -> Iterator[None]:
    """No collections meanwhile. Imports, and tracing a model, make many objects that stay, which each would go through.

    For the whole process: another thread's garbage waits, too.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def settle() -> None:
    """Call once all that lives as long as the process is there: no collection looks at that again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def trim_heap() -> None:
    """Give memory that was freed back to the system. Takes a few milliseconds.

    Loading a model allocates and frees tens of MiB on several threads, and each has an arena of its own. glibc
    keeps what is free in them unless it is asked, so a process that makes engines again and again would grow with
    every one. Other C libraries need no asking.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
