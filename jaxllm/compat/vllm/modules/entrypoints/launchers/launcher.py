"""What runs a server of one's own."""

import asyncio
import signal
import socket
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["serve_http"]


class _Server(uvicorn.Server):
    """uvicorn that keeps no signal, which it would send to the process again once it has ended."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, at a second Ctrl-C without waiting for connections."""
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True


async def serve_http(
    app: "ASGIApp", sock: socket.socket | None, enable_ssl_refresh: bool = False, **uvicorn_kwargs: Any
) -> Coroutine[Any, Any, None]:
    """Run an application with uvicorn until a signal ends it; what it returns is to be awaited, and does nothing.

    SIGINT and SIGTERM end the server and not the process: what follows this call runs. `sock` is listened to, if it is
    given. Certificates are read once: `enable_ssl_refresh` has no effect. `h11_max_header_count` neither: uvicorn has
    no such limit.
    """
    del enable_ssl_refresh
    uvicorn_kwargs.pop("h11_max_header_count", None)
    server = _Server(uvicorn.Config(app, **uvicorn_kwargs))
    await server.serve(None if sock is None else [sock])
    return asyncio.sleep(0)
