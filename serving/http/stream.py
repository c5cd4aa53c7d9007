"""Server-sent events: the results of a request, as they come, for as long as the client is there."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxllm.serving.http.connection.protocol import DirectBody, direct_body
from jaxllm.serving.http.error_form import event_of
from jaxllm.serving.http.keep_alive import KeepAlive
from jaxllm.serving.llm.output_stream import OutputStream, TextSink
from jaxllm.serving.text.outputs import RequestOutput

Result = TypeVar("Result")

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a stream: proxies must hold nothing back."""


class TextWriter(Protocol):
    """Writes events that only bring text to an answer."""

    def write(self, prompt_index: int, index: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """The event for more text of the answer of this index; None where text alone is no event."""


class EventWriter(Protocol):
    """Writes results as events."""

    @property
    def texts(self) -> TextWriter | None:
        """The events that are nothing but text; None where every event wants more."""

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Events for news of one prompt."""

    def end(self) -> bytes:
        """Sent when all is generated."""


class Events(Response):
    """A response of server-sent events, until they end or the client leaves."""

    def __init__(
        self,
        request_id: str,
        *,
        first: bytes = b"",
        failure: Callable[[Exception, str], bytes] = event_of,
        media_type: str = EVENTS,
        keep_alive: float = 0.0,
    ) -> None:
        """`first` is sent before there are results; `failure` gives the events for an error in a request of this id.

        For `keep_alive` see `KeepAlive`.
        """
        self.media_type = media_type
        self.status_code = 200
        self.background = None
        self.init_headers(EVENT_HEADERS)
        del self.headers["content-length"]
        self._request_id = request_id
        self._first = first
        self._describe_failure = failure
        # Only events may have comments between them.
        self._keep_alive = KeepAlive(keep_alive if media_type == EVENTS else 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        try:
            await unless_gone(receive, self._send(scope, send))
        except ClientDisconnect:
            pass
        finally:
            await self._close()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._begin(scope)
        if self._first:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async with self._keep_alive.watching(send), aclosing(self._guarded()) as events:
            async for data in events:
                await self._keep_alive.send(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _guarded(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._events()) as events:
                async for data in events:
                    yield data
        except Exception as error:  # noqa: BLE001  (the response has begun: an event must say it)
            yield self._describe_failure(error, self._request_id)

    def _begin(self, scope: Scope) -> None:
        """The headers are sent."""

    def _events(self) -> AsyncGenerator[bytes, None]:
        """What is sent."""
        raise NotImplementedError

    async def _close(self) -> None:
        """Nothing more is sent."""


class EventStream(Events):
    """The results of requests as events; when the client leaves, the requests end."""

    def __init__(
        self,
        streams: Sequence[OutputStream],
        writer: EventWriter,
        request_id: str,
        *,
        direct: bool = False,
        last: bytes = DONE,
        **framing: Any,
    ) -> None:
        """`direct`: events may go to the connection past whatever middleware there is, where the server offers it.

        `last` is sent after the writer's end; `framing` as for `Events`.
        """
        super().__init__(request_id, **framing)
        self._streams = streams
        self._writer = writer
        self._direct = direct
        self._last = last
        self._failure: Exception | None = None

    async def _close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _begin(self, scope: Scope) -> None:
        body = direct_body(scope) if self._direct else None
        if body is not None and len(self._streams) == 1:
            (stream,) = self._streams
            stream.sink = self._sink(body)
            if self._writer.texts is not None:
                stream.text_sink = self._text_sink(body, self._writer.texts)

    def _sink(self, body: DirectBody) -> Callable[[RequestOutput], bool]:
        """Writes a result to the connection as soon as it is there, if the connection takes it."""
        # What is called for every token is looked up once.
        ready, write_body, write_events, keep_alive = body.ready, body.write, self._writer.write, self._keep_alive

        def take(output: RequestOutput) -> bool:
            if self._failure is not None or not ready():
                return False
            try:
                data = write_events(0, output)
            except Exception as error:  # noqa: BLE001  (the task of this response raises it)
                self._failure = error
                return False
            if data:
                keep_alive.active = True
                write_body(data)
            return True

        return take

    def _text_sink(self, body: DirectBody, texts: TextWriter) -> TextSink:
        """`_sink` for what is nothing but text."""
        ready, write_body, write_text, keep_alive = body.ready, body.write, texts.write, self._keep_alive

        def take(index: int, text: str, token_ids: list[int]) -> bool:
            if not ready():
                return False
            try:
                data = write_text(0, index, text, token_ids)
                if data is None:
                    return False
                keep_alive.active = True
                write_body(data)
            except Exception as error:  # noqa: BLE001  (the task of this response raises it)
                self._failure = error
                return False
            return True

        return take

    async def _events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(merge_streams(self._streams)) as results:
            async for prompt_index, output in results:
                if self._failure is not None:
                    raise self._failure
                data = self._writer.write(prompt_index, output)
                if data:
                    yield data
        yield self._writer.end() + self._last


async def merge_streams(streams: Sequence[OutputStream]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The results of several streams as they come, each with the index of its stream.

    Takes no more than one result ahead of its reader, so that what waits merges where it is.
    """
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    arrived: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(maxsize=1)
    readers = [asyncio.ensure_future(_forward(index, stream, arrived)) for index, stream in enumerate(streams)]
    try:
        running = len(streams)
        while running:
            index, result = await arrived.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                running -= 1
            else:
                yield index, result
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _forward(
    index: int, stream: OutputStream, arrived: "asyncio.Queue[tuple[int, RequestOutput | Exception | None]]"
) -> None:
    end: Exception | None = None
    try:
        async for output in stream:
            await arrived.put((index, output))
    except Exception as error:  # noqa: BLE001  (the reader of the queue raises it)
        end = error
    await arrived.put((index, end))


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client leaves; then raises `ClientDisconnect`.

    The body of the request must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()
        # What they raise now is nobody's concern: the client has left, or the result is there.
        await asyncio.gather(working, leaving, return_exceptions=True)
        # An error has this frame in its traceback, and the task has the error: without a circle, all is gone at once.
        del work, working, leaving


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
