"""Work that may wait for long, in threads that nobody else needs."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def in_own_thread(function: Callable[[], Result]) -> Result:
    """Run this in a thread of its own. `asyncio.to_thread` has few, which many starts at once would take from others.

    If this is cancelled, the thread goes on.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def finish(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001  (whatever it is, it is for whoever waits)
            error = caught
        # A loop that is closed waits for nothing.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="own-thread", daemon=True).start()
    return await done
