"""The body of a request as it comes from its client."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive

from jaxllm.serving.http.errors import HttpError


class Upload:
    """The body of a request as it comes, and whether its client is still there."""

    def __init__(self, receive: Receive, *, ended: bool) -> None:
        """`ended`: there is no body."""
        self.ended = ended
        self._receive = receive
        self._read, self._left = asyncio.Event(), asyncio.Event()
        self._failure: Exception | None = None
        if ended:
            self._read.set()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body. A server must not be blamed for what is wrong with it: that is for `check`."""
        try:
            while not self._read.is_set():
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._left.set()
                    return
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body"):
                    self._read.set()
        except HttpError as error:
            self._failure = error

    def check(self) -> None:
        """Raise the error of a body that could not be read."""
        if self._failure is not None:
            raise self._failure

    async def gone(self) -> None:
        """Return when the client has left, which is looked for when the body was read."""
        waiting = [asyncio.ensure_future(each.wait()) for each in (self._read, self._left)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        while not self._left.is_set() and (await self._receive())["type"] != "http.disconnect":
            pass
