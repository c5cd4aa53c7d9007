"""Server-sent events: the results of a request, as they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.connection.direct_body import DirectBody, direct_body
from jaxllm.serving.http.disconnect import unless_gone
from jaxllm.serving.http.errors import event_of
from jaxllm.serving.llm.output_stream import OutputStream, TextSink
from jaxllm.serving.openai.generation.usage import UsageCounter
from jaxllm.serving.openai.protocol.generation import StreamOptions
from jaxllm.serving.text.outputs import RequestOutput

DONE = b"data: [DONE]\n\n"
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a stream: proxies must hold nothing back."""

_encode = msgspec.json.Encoder().encode


class EventWriter(Protocol):
    """Writes results as events."""

    @property
    def texts(self) -> "TextEvents | None":
        """The events that are nothing but text; None where every event wants more."""

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Events for news of one prompt."""

    def end(self) -> bytes:
        """What comes when all is generated."""


TEXT = "\0the text\0"
"""Stands in a choice where the text goes; no other field can be this."""


class TextEvent:
    """An event but for a text in it: most events of a stream are nothing else."""

    __slots__ = ("_before", "_behind")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self._before, self._behind = before, behind

    def event(self, text: str) -> bytes:
        """The event with this text."""
        return self._before + _encode(text) + self._behind


class TextEvents:
    """Events that only bring text to an answer, each but for its text prepared when the answer begins."""

    __slots__ = ("_counter", "_events")

    def __init__(self, counter: UsageCounter) -> None:
        self._counter = counter
        self._events: dict[int, TextEvent] = {}

    def prepare(self, index: int, event: TextEvent | None) -> None:
        """From now on this is the event of the answer of this index. None: it has no such."""
        if event is not None:
            self._events[index] = event

    def write(self, prompt_index: int, index: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """The event for more text, whose tokens are counted; None where none is prepared."""
        event = self._events.get(index)
        if event is None:
            return None
        self._counter.add_tokens(prompt_index, index, token_ids)
        return event.event(text)


class EventFrame:
    """What surrounds the choice in every event of a stream. Its constant part is encoded once."""

    def __init__(
        self, empty: Answer, counter: UsageCounter, options: StreamOptions | None, *, force_usage: bool
    ) -> None:
        """`empty` is an event without choices and usage, of which the choices are the last field."""
        head, _, _ = _encode(empty).rpartition(b'"choices":[]')
        self._head = b"data: " + head + b'"choices":['
        self._counter = counter
        self._asked = bool(options and options.include_usage)
        self._continuous = force_usage or (self._asked and bool(options and options.continuous_usage_stats))
        self._usage_at_end = self._asked or force_usage

    def event(self, choice: Answer, **extra: object) -> bytes:
        """An event with one choice, and `extra` fields beside it."""
        if self._continuous:
            extra.setdefault("usage", self._counter.usage)
        elif self._asked:
            extra["usage"] = None
        more = b"," + _encode(extra)[1:] if extra else b"}"
        return self._head + _encode(choice) + b"]" + more + b"\n\n"

    def first(self, choice: Answer, **extra: object) -> bytes:
        """`event` before there is any token."""
        if self._continuous:
            extra["usage"] = self._counter.prompt_usage
        return self.event(choice, **extra)

    def text_event(self, choice: Answer) -> "TextEvent | None":
        """Events with this choice and different texts, of which `TEXT` stands for one. None: they differ in more."""
        if self._continuous:
            return None
        before, _, behind = self.event(choice).rpartition(_encode(TEXT))
        return TextEvent(before, behind)

    def end(self) -> bytes:
        """The event with the usage, if there is to be one."""
        if not self._usage_at_end:
            return b""
        return self._head + b'],"usage":' + _encode(self._counter.usage) + b"}\n\n"


class EventStream(Response):
    """A response of server-sent events; when the client leaves, the requests end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        streams: Sequence[OutputStream],
        writer: EventWriter,
        request_id: str,
        *,
        direct: bool = False,
        first: bytes = b"",
        last: bytes = DONE,
        failure: Callable[[Exception, str], bytes] = event_of,
    ) -> None:
        """`direct`: events may go to the connection past whatever middleware there is, where the server offers it.

        `first` is sent before there are results, `last` behind the writer's end; `failure` gives the events for an
        error in a request of this id.
        """
        self.status_code = 200
        self.background = None
        self.init_headers(EVENT_HEADERS)
        del self.headers["content-length"]
        self._streams = streams
        self._writer = writer
        self._request_id = request_id
        self._direct = direct
        self._first = first
        self._last = last
        self._describe_failure = failure
        self._failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        try:
            await unless_gone(receive, self._send(scope, send))
        except ClientDisconnect:
            pass
        finally:
            for stream in self._streams:
                stream.close()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = direct_body(scope) if self._direct else None
        if body is not None and len(self._streams) == 1:
            (stream,) = self._streams
            stream.sink = self._sink(body)
            if self._writer.texts is not None:
                stream.text_sink = self._text_sink(body, self._writer.texts)
        if self._first:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async with aclosing(self._events()) as events:
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _sink(self, body: DirectBody) -> Callable[[RequestOutput], bool]:
        """Writes a result to the connection as soon as it is there, if the connection takes it."""
        # What is called for every token is looked up once.
        ready, write_body, write_events = body.ready, body.write, self._writer.write

        def take(output: RequestOutput) -> bool:
            if self._failure is not None or not ready():
                return False
            try:
                data = write_events(0, output)
            except Exception as error:  # noqa: BLE001  (the task of this response raises it)
                self._failure = error
                return False
            if data:
                write_body(data)
            return True

        return take

    def _text_sink(self, body: DirectBody, texts: TextEvents) -> TextSink:
        """`_sink` for what is nothing but text."""
        ready, write_body, write_text = body.ready, body.write, texts.write

        def take(index: int, text: str, token_ids: list[int]) -> bool:
            if not ready():
                return False
            try:
                data = write_text(0, index, text, token_ids)
                if data is None:
                    return False
                write_body(data)
            except Exception as error:  # noqa: BLE001  (the task of this response raises it)
                self._failure = error
                return False
            return True

        return take

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(in_turn(self._streams)) as results:
                async for prompt_index, output in results:
                    if self._failure is not None:
                        raise self._failure
                    data = self._writer.write(prompt_index, output)
                    if data:
                        yield data
            yield self._writer.end() + self._last
        except Exception as error:  # noqa: BLE001  (the response has begun: an event must say it)
            yield self._describe_failure(error, self._request_id)


async def in_turn(streams: Sequence[OutputStream]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
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
