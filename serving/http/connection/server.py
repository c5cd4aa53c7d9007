"""uvicorn's server with limits on connections; signals are left to the caller."""

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLContext

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxllm.errors import ConfigError
from jaxllm.serving.http.connection.connections import Connections
from jaxllm.serving.http.connection.protocol import LimitedProtocol
from jaxllm.serving.options.server import ServerOptions

_log = logging.getLogger(__name__)

_SILENT_INTERVAL = 0.5
_LATE_SECONDS = 1.0


class HttpServer(uvicorn.Server):
    """uvicorn that leaves signals to us: ending begins with the engine's requests, not with connections."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        """`connections` has the limits."""
        super().__init__(config)
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals as they are."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections of `sockets`. A TLS handshake has as long as headers have.

        Raises `OSError` for an address where another server began to listen since the socket was bound.
        """
        loop, config = asyncio.get_running_loop(), self.config
        seconds = None if config.ssl is None else self._connections.limits.headers_seconds or None

        def connected() -> asyncio.Protocol:
            return LimitedProtocol(config, self.server_state, loop, self._connections)

        for each in sockets or ():
            # uvloop closes a socket that cannot listen and raises nothing.
            each.listen(config.backlog)
        self.servers = [
            await loop.create_server(
                connected, sock=each, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=seconds
            )
            for each in sockets or ()
        ]
        self.started = True

    async def wait_until_it_listens(self, serving: "asyncio.Future[None]") -> None:
        """Return when connections are taken. `serving` is what `serve` does."""
        while not self.started:
            if serving.done():
                try:
                    await serving
                except OSError as error:
                    in_use = "another process listens at this address; choose another --port"
                    reason = in_use if error.errno == errno.EADDRINUSE else error.strerror or error
                    raise ConfigError(f"cannot listen: {reason}") from None
            await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Take no new connections, which another process has, and one more request of each of those that there are.

        Returns when all have ended. What is kept open without a request ends by its own timeout, not at once: its
        client may be sending the next one.
        """
        for server in self.servers:
            server.close()
        self.servers = []
        self._connections.are_leaving = True
        # What was accepted just now, or shakes hands for TLS, is nobody's connection yet.
        await asyncio.sleep(_LATE_SECONDS)
        await self._connections.none_open.wait()

    async def cut_silent(self, after: float) -> None:
        """After a while, close connections again and again on which nothing is left to be sent."""
        await asyncio.sleep(after)
        while True:
            for connection in list(self.server_state.connections):
                cycle, transport = getattr(connection, "cycle", None), connection.transport
                is_silent = cycle is None or cycle.response_complete
                if is_silent and not transport.get_write_buffer_size():
                    transport.abort()
            await asyncio.sleep(_SILENT_INTERVAL)

    def cut_connections(self) -> None:
        """Close what is still open. Handlers see their clients leave, which is no error; being cancelled would be."""
        connections = list(self.server_state.connections)
        if connections:
            _log.warning("closing %d connections that did not finish in time", len(connections))
        for connection in connections:
            if connection.transport is not None:
                connection.transport.abort()


def uvicorn_config(app: ASGIApp, options: ServerOptions, context: SSLContext | None) -> uvicorn.Config:
    """The options for uvicorn: the application as clients see it, the proxies, and what makes it speak TLS."""
    return uvicorn.Config(
        app if options.root_path is None else _under(app, options.root_path),
        ws="none",
        loop="none",
        interface="asgi3",
        # Nothing here has one, and uvicorn logs a traceback for one that is cut short.
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,  # AccessLog says more
        server_header=False,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies),
        timeout_keep_alive=options.timeout_keep_alive,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )


def _under(app: ASGIApp, root_path: str) -> ASGIApp:
    """`app` behind a proxy that shows it under `root_path`, whether or not the proxy takes that off the paths."""

    async def shown(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "root_path": root_path.rstrip("/")}, receive, send)

    return shown
