"""Uvicorn's fast protocol with the limits that it lacks: on what a client sends, and on how long it takes.

A request is rejected here before the application hears of it, so that no key is needed to be rejected.
"""

import asyncio
import json
import select
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from jaxllm.serving.http.connection.connections import (
    UPLOAD,
    Connections,
    RequestTimer,
    Upload,
    counted_address,
    upload_of,
)
from jaxllm.serving.http.connection.framing import refusal

DIRECT_BODY = "jaxllm.direct_body"
"""Name in the scope's `extensions`."""
DELIVERY = "jaxllm.delivery"
"""Name in the scope's `extensions`."""
_MOST_PIPELINED = 32
"""Requests that may wait on a connection for the response to the one before; what is read at once is parsed at once."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""How sockets are told not to linger."""
_MOST_DISCARDED = 64 * 2**20
"""Bytes of a body that are read although its request was answered, for clients that read the answer afterwards."""


class DirectBody:
    """Writes parts of a chunked response's body as `send` would, in a function that never waits.

    For a response whose headers are sent and say no length. What middleware does to `send` does not happen here.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def ready(self) -> bool:
        """Whether the connection takes more: not when its reader is slow, and not when it is gone."""
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, data: bytes) -> None:
        """Write a part of the body, which must not be empty: an empty one would end it."""
        # uvloop hands it to the system at once.
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


def direct_body(scope: Scope) -> DirectBody | None:
    """The direct body of a request, if the server offers one."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get(DIRECT_BODY)


class Delivery:
    """Tells if a response does not reach its client, as far as this end of the connection can see."""

    __slots__ = ("_cycle", "_on_failure")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._on_failure: Callable[[], None] | None = None

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Call this, once, if the client leaves before it has read the response, also if it has left already."""
        self._on_failure = on_failure
        if self._cycle.disconnected:
            self.fail()

    def fail(self) -> None:
        """It does not reach the client."""
        on_failure, self._on_failure = self._on_failure, None
        if on_failure is not None:
            on_failure()


def delivery_of(scope: Mapping[str, Any]) -> Delivery | None:
    """What is known of the response to a request, if the server offers that."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get(DELIVERY)


class LimitedProtocol(HttpToolsProtocol):
    """Counts bytes, requests and seconds of one connection, within the limits of all.

    Applications find a `DirectBody` and the `Delivery` of the response, and the request's `Upload`, in the scope's
    extensions.
    """

    address: str | None = None
    _running: RequestResponseCycle | None = None
    """The request that is being answered; those after it wait in `pipeline`."""
    _upload: Upload | None = None
    """Upload of the request that is being read, from its headers on."""
    _refusal: tuple[int, str] | None = None
    _header_bytes = 0
    _framing = 0
    """Bytes of a body that are not its content: sizes and extensions of chunks, trailers."""

    def __init__(
        self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop, connections: Connections
    ) -> None:
        super().__init__(config, state, {}, loop)
        self._all = connections
        self._limits = connections.limits
        self._timer = RequestTimer(connections.limits, loop.time())

    # Connections

    def connection_made(self, transport: Any) -> None:
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        self.address = counted_address(self.client)
        if not self._all.admit(self):
            self._refuse(503, "the server has too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        self._all.remove(self)
        running = self._running
        if exc is not None or (running is not None and not running.response_complete):
            # A client that has read everything closes well; one that has not resets the connection.
            self._fail_delivery()
        self._abandon()
        super().connection_lost(exc)

    def _fail_delivery(self) -> None:
        delivery = None if self._running is None else delivery_of(self._running.scope)
        if delivery is not None:
            delivery.fail()

    def _abandon(self) -> None:
        """Let every request on this connection know that its client is gone; uvicorn tells only the last one."""
        for cycle in (self._running, self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
            if cycle is not None:
                upload_of(cycle.scope).release()
        self.pipeline.clear()

    @property
    def unfinished_bytes(self) -> int:
        """Held of the body that is being received."""
        return 0 if self._upload is None else self._upload.held

    def check(self, now: float) -> None:
        """Close the connection if its time is over."""
        answering = self._running is not None and not self._running.response_complete
        overdue = self._timer.overdue(
            now,
            self.transport.get_write_buffer_size(),
            answering=answering,
            paused=self.flow.read_paused,
            idle_seconds=self._all.idle_seconds,
        )
        if overdue is None:
            return
        if overdue.aborts or self.transport.is_closing():
            self._reset()
        elif overdue.message:
            self._refuse(408, overdue.message)
        else:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, on which nothing has come for a while, unless a request is there to be read.

        An event loop that was held up for long sees that the time is over before it reads what came meanwhile. Closing
        then would cut off a client that has done nothing wrong.
        """
        if not self._has_unread():
            super().timeout_keep_alive_handler()

    def _has_unread(self) -> bool:
        system = self.transport.get_extra_info("socket")
        if system is None or self.transport.is_closing():
            return False
        waiting = select.poll()
        waiting.register(system.fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    def _reset(self) -> None:
        """Cut the connection; the system, too, forgets what the client has not read."""
        self._fail_delivery()
        system = self.transport.get_extra_info("socket")
        if system is not None:
            with suppress(OSError):
                system.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def drop(self, reason: str) -> None:
        """Close the connection to make room for others."""
        if self._upload is None:
            self._all.leave(self)
            self.transport.close()
        else:
            self._refuse(503, reason)

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and count those that the parser keeps to itself."""
        self._framing += len(data)
        self._timer.heard(self.loop.time(), len(data))
        super().data_received(data)
        # What never ends is not shown below.
        most = 2 * self._limits.header_bytes + (0 if self._upload is None else self._upload.received)
        if self._framing > most and not self._timer.whole and not self.transport.is_closing():
            self._refuse(431, "the headers or the chunk framing of the body are too large")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._header_bytes = self._framing = 0
        self._timer.begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the URL, which counts as a header."""
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after a body in chunks."""
        self._count_header(len(name) + len(value))
        if self._upload is not None:
            # A trailer, which must not become a header: what the headers say was checked before.
            self._upload.trailers += 1
        else:
            super().on_header(name, value)
        if len(self.headers) + (self._upload.trailers if self._upload else 0) > self._limits.headers:
            self._stop(431, f"more than {self._limits.headers} headers (--h11-max-header-count)")

    def on_headers_complete(self) -> None:
        """Begin the application, or let it wait for the response to the request before."""
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._stop(400, f"more than {_MOST_PIPELINED} requests are waiting on this connection")
        refused = refusal(self.headers, self.parser.get_http_version())
        if refused is not None:
            self._stop(*refused)
        self._upload = Upload(self._all)
        extensions: dict[str, Any] = {UPLOAD: self._upload}
        self.scope["extensions"] = extensions
        self._timer.headers_complete()
        self._framing = 0
        super().on_headers_complete()
        if self._all.are_leaving:
            self.cycle.keep_alive = False
        extensions[DELIVERY] = Delivery(self.cycle)
        if self.scope["http_version"] != "1.0":
            # The application has not begun: it runs in a task.
            extensions[DIRECT_BODY] = DirectBody(self.cycle)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._framing -= len(body)
        assert self._upload is not None
        if not self.cycle.response_complete:
            if not self._upload.take(len(body)):
                self._stop(503, "the server is receiving too many request bodies; try again later")
        elif self._upload.skip(len(body)) > _MOST_DISCARDED:
            self._stop(413, "the request was answered before its body ended")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there."""
        self._upload = None
        self._timer.message_complete()
        self._all.wait(self, begins=False)
        super().on_message_complete()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            self._stop(431, f"headers of more than {self._limits.header_bytes} bytes (--h11-max-incomplete-event-size)")

    # Answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The next request may begin."""
        if self._running is not None:
            upload_of(self._running.scope).release()
        self._all.wait(self, begins=True)
        self._timer.answered(self.loop.time())
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser, or a limit, has stopped at."""
        self._refuse(*(self._refusal or (400, "not a valid HTTP/1.1 request")))

    def _stop(self, status: int, message: str) -> None:
        """Stop the parser, and refuse the request; uvicorn asks for the answer above."""
        self._refusal = (status, message)
        raise _RefusedError

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, unless another answer has begun, and close."""
        self._all.leave(self)
        first = self._running is None or self._running.response_complete
        if not self.pipeline and (first or (self._running is self.cycle and not self.cycle.response_started)):
            self.transport.write(_answer(status, message))
        self.transport.close()
        self._abandon()


def _without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """`app` for a client of HTTP/1.0: a body whose length the headers do not say ends with the connection.

    `cycle` is uvicorn's, which would write chunks.
    """

    async def run(scope: Any, receive: Any, send: Any) -> None:
        unknown = False

        async def send_plain(message: Any) -> None:
            nonlocal unknown
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unknown = b"content-length" not in names
                if unknown:
                    cycle.chunked_encoding = False
            elif unknown:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def _answer(status: int, message: str) -> bytes:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()
    retry = {503: b"retry-after: 1\r\n", 415: b"accept-encoding: identity\r\n"}.get(status, b"")
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n" % (len(body), retry)
    return STATUS_LINE[status] + head + body


class _RefusedError(Exception):
    """Stops the parser."""
