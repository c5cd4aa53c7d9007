"""The asynchronous client: an engine in a process of its own, with many requests in flight on one event loop."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError, QueueFullError, RequestError
from jaxllm.info import EngineInfo
from jaxllm.progress import Progress
from jaxllm.serving.clients.connection import EngineConnection, Launch
from jaxllm.serving.clients.heartbeat import Heartbeat
from jaxllm.serving.clients.mailbox import Mailbox
from jaxllm.serving.engine_process.messages import (
    Abort,
    Finish,
    FromEngine,
    Outputs,
    Ping,
    Reply,
    ResetPrefixCache,
    ToEngine,
)
from jaxllm.serving.measurements import Measurements
from jaxllm.serving.text_engine import Follower
from jaxllm.stats import StepStats

logger = logging.getLogger(__name__)

IDLE_PING_SECONDS = 5.0
"""How often an idle engine is asked whether it lives."""


class Observer(Protocol):
    """Sees every message of the engine, on the event loop."""

    def observe(self, stats: StepStats | None, measured: Measurements | None) -> None:
        """Take the state after a step, and what was measured of the requests in it."""


class AsyncEngine:
    """Sends requests of one kind to the engine process, and what comes of them to their readers.

    A reader has `request`, `put`, `fail` and `close`, as an `OutputStream` has. Everything belongs to the event loop on
    which this is made.
    """

    def __init__(self, *, max_queued_requests: int | None, step_timeout: float, launch: Launch) -> None:
        """As `AsyncLLM.start`."""
        self.observers: list[Observer] = []
        self._max_queued = max_queued_requests
        self._mailbox = Mailbox[FromEngine | EngineError](self._take_news)
        self._connection = EngineConnection(self._receive, self._mailbox.put_at_once, launch)
        self._heartbeat = Heartbeat(step_timeout)
        self._outputs: Follower[Any]
        self._readers: dict[str, Any] = {}
        self._sequences = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._error: EngineError | None = None
        self._replies: dict[int, asyncio.Future[bool]] = {}
        self._numbers = itertools.count()
        self._watch: asyncio.Task[None] | None = None

    async def start(self, config: EngineConfig, *, progress: Progress, log_level: str, json_logs: bool) -> EngineInfo:
        """Start the process. Raises `ConfigError`, `CapacityError` and `EngineError`."""
        return await asyncio.to_thread(
            self._connection.start, config, progress=progress, log_level=log_level, json_logs=json_logs
        )

    def serve(self, outputs: Follower[Any]) -> None:
        """From now on requests are taken: `outputs` makes results of what the engine says of them."""
        self._outputs = outputs
        self._watch = asyncio.create_task(self._ping_when_idle())

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""
        return self._connection.info

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._connection.pid

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._readers)

    # Requests

    def submit(
        self,
        requests: Sequence[Any],
        make_reader: Callable[[Any, Callable[[str], None]], Any],
        make_message: Callable[[Any], ToEngine],
    ) -> list[Any]:
        """Send prepared requests, all or none; a reader for each, made of it and of what ends it early.

        Raises `QueueFullError` when too many wait already, `EngineError` when the engine is dead or hangs, and
        `RequestError` for an id in use.
        """
        self.check_health()
        self._check_queue(sum(len(request.children) for request in requests))
        known: set[str] = set()
        for request in requests:
            name = request.request_id
            if name in self._readers or name in known:
                raise RequestError(f"request_id={name!r} is in use", "request_id")
            known.add(name)
        self._heartbeat.expect(time.monotonic())
        self._idle.clear()
        readers = []
        for request in requests:
            reader = make_reader(request, self._abort_one)
            self._readers[request.request_id] = reader
            self._sequences += len(request.children)
            self._outputs.add(request, reader)
            self._connection.send(make_message(request))
            readers.append(reader)
        return readers

    def _check_queue(self, count: int) -> None:
        if self._max_queued is None:
            return
        most = self.info.max_num_seqs + self._max_queued
        if self._sequences + count > most:
            raise QueueFullError(f"{self._sequences} sequences run or wait already, of {most}: try again later")

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests; nothing more comes of them. Unknown ids are ignored."""
        names = [name for name in request_ids if name in self._readers]
        if not names:
            return
        children = self._outputs.abort(names)
        for name in names:
            self._forget(name)
        if children and self._error is None:
            self._connection.send(Abort(children))

    def _abort_one(self, request_id: str) -> None:
        self.abort([request_id])

    def _forget(self, request_id: str) -> Any:
        reader = self._readers.pop(request_id)
        self._sequences -= len(reader.request.children)
        if not self._readers:
            self._idle.set()
        return reader

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run."""
        self.check_health()
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._heartbeat.expect(time.monotonic())
        self._connection.send(ResetPrefixCache(number))
        return await reply

    # Life and death

    def check_health(self) -> None:
        """Raise `EngineError`, saying why, when the engine is dead or hangs."""
        if self._error is not None:
            raise self._error
        silence = self._heartbeat.silence(time.monotonic())
        if silence > self._heartbeat.limit:
            raise EngineError(f"the engine hangs: it has not answered for {silence:.0f} seconds")

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing is in flight. False when that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def fail_all(self, message: str) -> None:
        """End every request with `EngineError(message)`."""
        readers = list(self._readers.values())
        self.abort(list(self._readers))
        for reader in readers:
            reader.fail(EngineError(message))

    async def shutdown(self) -> None:
        """End the engine process; whoever still waits gets an error. May be called again."""
        if self._watch is not None:
            self._watch.cancel()
        self._error = self._error or EngineError("the engine is shut down")
        self.fail_all(str(self._error))
        self._mailbox.close()
        await asyncio.to_thread(self._connection.close)

    async def _ping_when_idle(self) -> None:
        """Make sure that an engine which nobody uses would be missed."""
        while self._error is None:
            await asyncio.sleep(IDLE_PING_SECONDS)
            if not self._readers:
                self._heartbeat.expect(time.monotonic())
                self._connection.send(Ping())

    # News from the engine

    def _receive(self, message: FromEngine) -> None:
        """In the listening thread."""
        self._heartbeat.heard(time.monotonic(), busy=bool(self._readers))
        self._mailbox.put(message)

    def _take_news(self, news: list[FromEngine | EngineError]) -> None:
        for message in news:
            match message:
                case Outputs():
                    self._take_outputs(message)
                case Reply(number, result):
                    self._replies.pop(number).set_result(result)
                case EngineError():
                    self._fail(message)
        if not self._readers:
            self._heartbeat.heard(time.monotonic(), busy=False)

    def _take_outputs(self, message: Outputs) -> None:
        try:
            self._process(message)
        except Exception as error:
            # A defect here must not leave anybody waiting for results that were lost.
            logger.exception("the engine's results could not be read")
            self.fail_all(f"the engine's results could not be read: {error!r}")

    def _process(self, message: Outputs) -> None:
        processed = self._outputs.process(message.outputs)
        if processed.stopped:
            self._connection.send(Finish(processed.stopped))
        if processed.aborted:
            self._connection.send(Abort(processed.aborted))
        for request_id, error in processed.refused:
            self._forget(request_id).fail(error)
        for output in processed.outputs:
            reader = self._forget(output.request_id) if output.finished else self._readers[output.request_id]
            reader.put(output)
        for observer in self.observers:
            observer.observe(message.stats, processed.measurements)

    def _fail(self, error: EngineError) -> None:
        self._error = error
        self.fail_all(str(error))
        for reply in self._replies.values():
            reply.set_exception(error)
        self._replies.clear()
