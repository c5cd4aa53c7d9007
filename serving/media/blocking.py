"""Coroutines for callers without an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_now(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """The result of a coroutine, run in a thread: the caller's may have an event loop, as in notebooks."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001  (it is raised again, where it belongs)
            errors.append(error)

    thread = threading.Thread(target=run, name="media")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
