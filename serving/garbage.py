"""Garbage collection in processes that serve: it must not stop them again and again for what is in use."""

import gc

YOUNG_OBJECTS = 50_000
"""So many new objects are there before a collection. One step of 1,000 streams makes several thousand, all of which
are gone, without any collection, when it is sent: Python's own 700 would have it look for garbage thrice a step."""


def settle() -> None:
    """Call once all that lives as long as the process is there: no collection looks at that again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
