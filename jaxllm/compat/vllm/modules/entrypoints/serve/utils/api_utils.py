"""For routes of one's own."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request

__all__ = ["with_cancellation"]


def with_cancellation(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A route that is cancelled when its client leaves; then it returns None.

    The request is the second argument, or called `raw_request`. Its body must have been read.
    """

    @functools.wraps(handler)
    async def cancelled_if_nobody_waits(*args: Any, **kwargs: Any) -> Any:
        request: Request = kwargs["raw_request"] if "raw_request" in kwargs else args[1]
        answer = asyncio.ensure_future(handler(*args, **kwargs))
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            for task in (answer, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    return cancelled_if_nobody_waits


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
