"""Comments in streams of events that bring nothing for a while: proxies end connections on which nothing comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Send

COMMENT = b": keep-alive\n\n"
"""What readers of events leave out."""


class KeepAlive:
    """Of one stream. Whoever sends an event sets `active`."""

    __slots__ = ("_interval", "active")

    def __init__(self, interval: float) -> None:
        """The stream is never silent for longer than `interval` seconds; 0: it may be."""
        self._interval = interval
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
            if not self.active:
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
