"""The event loop of servers, and of those who load them."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

if sys.platform == "win32":
    _NEW_LOOP: Callable[[], asyncio.AbstractEventLoop] | None = None
else:
    import uvloop

    _NEW_LOOP = uvloop.new_event_loop

Result = TypeVar("Result")


def on_fast_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run this on an event loop of its own, the fastest there is."""
    with asyncio.Runner(loop_factory=_NEW_LOOP) as runner:
        return runner.run(work)
