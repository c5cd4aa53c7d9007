"""Comments in streams of events that bring nothing for a while: proxies end connections on which nothing comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Send

COMMENT = b": keep-alive\n\n"
"""The events that readers leave out."""


class KeepAlive:
    """Keep-alive comments of one stream. Events are sent by `send`; whoever writes one past it sets `active`."""

    __slots__ = ("_interval", "_sending", "active")

    def __init__(self, interval: float) -> None:
        """The stream is never silent for longer than `interval` seconds; 0: it may be."""
        self._interval = interval
        self._sending = asyncio.Lock()
        self.active = True

    async def send(self, send: Send, data: bytes) -> None:
        """Send a part of the body. One at a time: `send` may wait for a slow reader, and two must not meet in it."""
        async with self._sending:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            # Silence begins now, however long the reader was waited for.
            self.active = True

    @asynccontextmanager
    async def watching(self, send: Send) -> AsyncIterator[None]:
        """Within it comments are sent. The headers of the response are out, and its last part is not."""
        if not self._interval:
            yield
            return
        watch = asyncio.ensure_future(self._watch(send))
        try:
            yield
        finally:
            watch.cancel()
            # Whether it could send is for whoever sends the next event to find out.
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, send: Send) -> None:
        while True:
            self.active = False
            # An event may come at the beginning of such a time, and the next at the end of the following one.
            await asyncio.sleep(self._interval / 2)
            # Where an event waits for its reader, nothing need keep the stream alive.
            if not (self.active or self._sending.locked()):
                await self.send(send, COMMENT)
