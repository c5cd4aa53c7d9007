"""Responses that are made while nobody waits for them, and streams of events that are stored."""

import asyncio

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxllm.serving.http.keep_alive import KeepAlive
from jaxllm.serving.http.stream import EVENT_HEADERS, EVENTS, unless_gone
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.openai.responses.replay import Replay, Told
from jaxllm.serving.openai.responses.store import EventLog, ResponseStore, Stored
from jaxllm.serving.openai.responses.writer import ResponseWriter
from jaxllm.serving.text.outputs import RequestOutput


class BackgroundRun:
    """Takes the results of one request, whoever comes and goes; the writer is told how it ends.

    Where a log has events of an earlier server, the results begin again, and the events go on where they were.
    """

    def __init__(
        self, stream: OutputStream, writer: ResponseWriter, request_id: str, store: ResponseStore, stored: Stored
    ) -> None:
        """Starts at once. Events go to `stored`, if it has a log."""
        self._store = store
        self._stored = stored
        self._stream = stream
        self._writer = writer
        self._request_id = request_id
        self._told = Told()
        self._replay = Replay(stored.progress, self._told) if stored.num_events else None
        writer.start()
        self._skip_if_over()
        self._keep_events()
        self._task = asyncio.create_task(self._run())

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._writer.ended

    def cancel(self) -> None:
        """End it; what there is stays."""
        if self.ended:
            return
        self._task.cancel()
        self._stream.close()
        self._writer.cancel()
        self._finish()

    async def _run(self) -> None:
        try:
            async for output in self._stream:
                self._take(output)
                self._keep_events()
            self._writer.close()
        except Exception as error:  # noqa: BLE001  (nobody waits for this task: the response says it)
            if self._replay is not None:
                self._go_on()
            self._writer.break_off(error, self._request_id)
        finally:
            self._stream.close()
        self._finish()

    def _take(self, output: RequestOutput) -> None:
        if self._replay is not None:
            told, output = self._replay.divide(output)
            self._writer.take(told)
            self._skip_if_over()
            if self._replay is not None:
                return
        self._writer.take(output)
        if self._stored.log is not None:
            self._stored.progress = self._told.add(output)

    def _skip_if_over(self) -> None:
        if self._replay is not None and self._replay.over:
            self._go_on()

    def _go_on(self) -> None:
        """What was written so far is told already; what comes now is new."""
        self._replay = None
        self._writer.go_on_from(self._stored.num_events)

    def _keep_events(self, *, last: bool = False) -> None:
        if self._replay is None:
            self._store.tell(self._stored, self._writer.take_events(), last=last)

    def _finish(self) -> None:
        if self._replay is not None:
            self._go_on()
        self._keep_events(last=True)


class LogStream(Response):
    """The events of a log from a place on, and those to come; a client that leaves ends nothing."""

    media_type = EVENTS

    def __init__(self, log: EventLog, begin: int, keep_alive: float = 0.0) -> None:
        """`begin` counts the events that the client has. For `keep_alive` see `KeepAlive`."""
        self.status_code = 200
        self.background = None
        self.init_headers(EVENT_HEADERS)
        del self.headers["content-length"]
        self._log = log
        self._begin = begin
        self._keep_alive = KeepAlive(keep_alive)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await unless_gone(receive, self._send(send))
        except ClientDisconnect:
            return

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sent = self._begin
        async with self._keep_alive.watching(send):
            while True:
                await self._log.wait(beyond=sent)
                data = b"".join(self._log.events[sent:])
                if not data:
                    break
                sent = len(self._log.events)
                await self._keep_alive.send(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
