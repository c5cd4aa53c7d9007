"""What runs a server of one's own."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["serve_http"]


async def serve_http(
    app: "ASGIApp", sock: socket.socket | None, enable_ssl_refresh: bool = False, **uvicorn_kwargs: Any
) -> Coroutine[Any, Any, None]:
    """Run an application with uvicorn until a signal ends it; what it returns is to be awaited, and does nothing.

    `sock` is listened to, if it is given. Certificates are read once: `enable_ssl_refresh` has no effect.
    """
    import uvicorn

    del enable_ssl_refresh
    server = uvicorn.Server(uvicorn.Config(app, **uvicorn_kwargs))
    await server.serve(None if sock is None else [sock])
    return asyncio.sleep(0)
