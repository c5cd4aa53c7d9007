"""The real server and protocol on a loopback port, before a small application, with limits that are soon reached."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxllm.serving.http.connection.connections import Connections
from jaxllm.serving.http.connection.protocol import delivery_of
from jaxllm.serving.http.connection.server import HttpServer
from jaxllm.serving.http.limits import HttpLimits


class LimitedServer:
    """A server in a thread; what its application saw."""

    def __init__(self, limits: HttpLimits, keep_alive: int) -> None:
        self.connections = Connections(limits)
        self.gone = 0
        self.headers: list[list[bytes]] = []
        self.ended = threading.Event()
        self.asked, self.answers, self.undelivered = threading.Event(), threading.Event(), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._keep_alive = keep_alive
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._listens.wait(60)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        routes = [
            Route("/echo", self._echo, methods=["POST"]),
            Route("/refuse", self._refuse, methods=["POST"]),
            Route("/stream", self._stream),
            Route("/watched", self._watched),
            Route("/", self._hello),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), ws="none", loop="none", lifespan="off", log_config=None, access_log=False,
            timeout_keep_alive=self._keep_alive,
        )  # fmt: skip
        self.http = HttpServer(config, self.connections)
        self._loop = asyncio.get_running_loop()
        watching = asyncio.create_task(self.connections.watch())
        serving = asyncio.create_task(self.http.serve(sockets=[self._socket]))
        await self.http.wait_until_it_listens(serving)
        self._listens.set()
        await serving
        watching.cancel()

    def end(self) -> None:
        """Stop serving."""
        # In the loop's own thread: uvloop's connections know no locks.
        self._loop.call_soon_threadsafe(self._cut)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _cut(self) -> None:
        self.http.should_exit = True
        self.http.cut_connections()

    async def _echo(self, request: Request) -> Response:
        self.headers.append([name for name, _ in request.scope["headers"]])
        try:
            body = await request.body()
        except ClientDisconnect:
            self.gone += 1
            raise
        self.headers.append([name for name, _ in request.scope["headers"]])
        return PlainTextResponse(str(len(body)))

    async def _refuse(self, request: Request) -> Response:
        return PlainTextResponse("no", 401)

    async def _hello(self, request: Request) -> Response:
        await asyncio.sleep(0.05)
        return PlainTextResponse("hello")

    async def _watched(self, request: Request) -> Response:
        """Waits for the test, then answers."""
        self.asked.set()
        await asyncio.to_thread(self.answers.wait, 60)
        delivery = delivery_of(request.scope)
        assert delivery is not None
        delivery.watch(self.undelivered.set)
        return PlainTextResponse("read me")

    def hold_up(self, seconds: float) -> None:
        """Let the event loop do nothing else for a while, as it takes what sockets have."""
        woken, waking = socket.socketpair()

        def hold() -> None:
            self._loop.remove_reader(woken)
            woken.close()
            time.sleep(seconds)

        self._loop.call_soon_threadsafe(self._loop.add_reader, woken, hold)
        waking.send(b"x")
        waking.close()

    async def _stream(self, request: Request) -> Response:
        async def parts() -> Any:
            try:
                for _ in range(int(request.query_params["parts"])):
                    yield b"x" * int(request.query_params["size"])
            finally:
                self.ended.set()

        return StreamingResponse(parts())

    def connect(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


Serve = Callable[..., AbstractContextManager[LimitedServer]]


@pytest.fixture(scope="session")
def limited() -> Serve:
    """`limited(connections=4)` serves with these fields of `HttpLimits`."""

    @contextmanager
    def run(*, keep_alive: int = 30, **limits: Any) -> Iterator[LimitedServer]:
        server = LimitedServer(HttpLimits(idle_seconds=keep_alive, **limits), keep_alive)
        try:
            yield server
        finally:
            server.end()

    return run
