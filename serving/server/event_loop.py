"""The event loop of servers, and of those who load them."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_on_fast_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run this on an event loop of its own, the fastest there is."""
    with asyncio.Runner(loop_factory=None if sys.platform == "win32" else _uvloop) as runner:
        return runner.run(work)


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
