"""`AsyncLLM`: text in, text out, for many callers at once on one event loop, with the engine in its own process."""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError, QueueFullError, RequestError
from jaxllm.info import EngineInfo
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.pooling.params import PoolingParams
from jaxllm.progress import Progress, silent
from jaxllm.sampling_params import SamplingParams
from jaxllm.serving.clients.connection import EngineConnection, Launch
from jaxllm.serving.clients.heartbeat import Heartbeat
from jaxllm.serving.clients.process import EngineProcess
from jaxllm.serving.engine_process.messages import (
    Abort,
    Add,
    Finish,
    FromEngine,
    Outputs,
    Ping,
    Pool,
    Reply,
    ResetPrefixCache,
    ToEngine,
)
from jaxllm.serving.generation_config import read_default_params
from jaxllm.serving.llm_engine import check_vocabulary, load_tokenizer
from jaxllm.serving.measurements import Measurements
from jaxllm.serving.output_stream import OutputStream
from jaxllm.serving.outputs import RequestOutput
from jaxllm.serving.pooling.inputs import PooledText, PoolingInputs, TextPair
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.pooling.processor import PoolingProcessor
from jaxllm.serving.pooling.result import PooledResult
from jaxllm.serving.text.chat import Conversation, load_chat_template, render_chat
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.output_processor import OutputProcessor
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.stats import StepStats
from jaxllm.validation import RequestLimits

logger = logging.getLogger(__name__)

TEXT_THREADS = 2
"""Threads for tokenizing and chat templates: a long prompt in one leaves the other, and the event loop, free."""
MOST_NEWS = 2
"""Messages that wait for the event loop. When it has no time, more stay with the engine, where they merge."""
IDLE_PING_SECONDS = 5.0
"""How often an idle engine is asked whether it lives."""

Result = TypeVar("Result")


class Observer(Protocol):
    """Sees every message of the engine, on the event loop."""

    def observe(self, stats: StepStats | None, measured: Measurements | None) -> None:
        """Take the state after a step, and what was measured of the requests in it."""


class AsyncLLM:
    """An engine process and its requests. Make one with `start`; everything belongs to the event loop of that call."""

    def __init__(
        self, config: EngineConfig, *, max_queued_requests: int | None, step_timeout: float, launch: Launch
    ) -> None:
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.default_params = SamplingParams()
        self.observers: list[Observer] = []
        self._max_queued = max_queued_requests
        self._loop = asyncio.get_running_loop()
        self._text_threads = ThreadPoolExecutor(TEXT_THREADS, "text")
        self._connection = EngineConnection(self._receive, self._end, launch)
        self._heartbeat = Heartbeat(step_timeout)
        # A stream of each request, or its one result; which of them, the kind of model decides.
        self._streams: dict[str, Any] = {}
        self._sequences = 0
        self._news: list[FromEngine | EngineError] = []
        self._news_changed = threading.Condition()
        self._ended = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._error: EngineError | None = None
        self._replies: dict[int, asyncio.Future[bool]] = {}
        self._numbers = itertools.count()
        self._chat_template: str | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        max_queued_requests: int | None = None,
        step_timeout: float = 120.0,
        progress: Progress = silent,
        chat_template: str | None = None,
        log_level: str = "info",
        json_logs: bool = False,
        launch: Launch = EngineProcess,
    ) -> Self:
        """Start the engine process and load model and tokenizer, side by side.

        `max_queued_requests` limits the sequences that wait beside those that can run; None: no limit. An engine that
        says nothing for `step_timeout` seconds, although it should, counts as hanging. `chat_template` is Jinja text or
        a file; `launch` starts the engine process. Raises `ConfigError`, `CapacityError` and
        `EngineError`.
        """
        template = None if chat_template is None else load_chat_template(chat_template)
        llm = cls(config, max_queued_requests=max_queued_requests, step_timeout=step_timeout, launch=launch)
        tokenizer = llm.run_text(load_tokenizer, config.model)
        try:
            await asyncio.to_thread(
                llm._connection.start, config, progress=progress, log_level=log_level, json_logs=json_logs
            )
            llm._take_tokenizer(await tokenizer, template)
        except BaseException:
            tokenizer.cancel()
            await llm.shutdown()
            raise
        llm._watch = asyncio.create_task(llm._ping_when_idle())
        return llm

    def _take_tokenizer(self, tokenizer: Tokenizer, chat_template: str | None) -> None:
        check_vocabulary(tokenizer, self.info.vocab_size)
        self.tokenizer, self._chat_template = tokenizer, chat_template
        self.default_params = read_default_params(Path(self.info.model_folder))
        self._inputs: InputProcessor | PoolingInputs
        self._outputs: OutputProcessor | PoolingProcessor
        if self.info.pooling is not None:
            self._inputs = PoolingInputs(tokenizer, PoolingLimits.of(self.info))
            self._outputs = PoolingProcessor()
            return
        self._inputs = InputProcessor(tokenizer, RequestLimits.of(self.info), self.info.eos_token_ids)
        self._outputs = OutputProcessor(tokenizer, measure=True)

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""
        return self._connection.info

    @property
    def num_unfinished(self) -> int:
        """Requests in flight."""
        return len(self._streams)

    @property
    def engine_pid(self) -> int:
        """Process id of the engine."""
        return self._connection.pid

    # Requests

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        stream: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue one prompt. A stream's results are deltas; otherwise there is one, at the end.

        Whoever stops reading aborts the request. Raises `RequestError`, `QueueFullError` and `EngineError`.
        """
        name = request_id if request_id is not None else f"generate-{next(self._numbers)}"
        chosen = self.default_params if params is None else params
        requests = await self.prepare([prompt], chosen, [name], priority=priority, stream=stream)
        (results,) = self.submit(requests)
        with closing(results):
            async for output in results:
                yield output

    async def prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        request_ids: Sequence[str],
        *,
        priority: int = 0,
        stream: bool = False,
        add_special_tokens: bool = True,
    ) -> list[TextRequest]:
        """Check and tokenize prompts, off the event loop. Raises `RequestError`."""
        inputs = self._inputs
        if not isinstance(inputs, InputProcessor):
            raise RequestError("this model pools, it does not generate: ask for embeddings or scores instead")
        chosen = inputs

        def work() -> list[TextRequest]:
            return chosen.prepare(
                prompts, params, request_ids, priority=priority, stream=stream, add_special_tokens=add_special_tokens
            )

        return await self.run_text(work)

    async def render_chat(self, messages: Conversation, *, chat_template: str | None = None, **settings: Any) -> str:
        """The prompt of a conversation, made off the event loop; see `jaxllm.serving.text.chat.render_chat`."""
        assert self.tokenizer is not None
        tokenizer, template = self.tokenizer, chat_template or self._chat_template
        return await self.run_text(lambda: render_chat(tokenizer, messages, chat_template=template, **settings))

    def run_text(self, function: Callable[..., Result], *arguments: Any) -> "asyncio.Future[Result]":
        """Run work on text in a thread of its own kind, so that it delays nobody's stream."""
        return self._loop.run_in_executor(self._text_threads, function, *arguments)

    async def encode(
        self,
        prompt: Prompt,
        params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Pool one text: yields its one result. Raises `RequestError`, `QueueFullError` and `EngineError`."""
        name = request_id if request_id is not None else f"encode-{next(self._numbers)}"
        requests = await self.prepare_texts([prompt], params or PoolingParams(), [name], priority=priority)
        (result,) = await self.pool(requests)
        yield result

    async def prepare_texts(
        self,
        prompts: Sequence[Prompt | TextPair],
        params: PoolingParams | Sequence[PoolingParams],
        request_ids: Sequence[str],
        *,
        priority: int = 0,
        add_special_tokens: bool = True,
    ) -> list[PooledText]:
        """Check and tokenize texts for a pooling model, off the event loop. Raises `RequestError`."""
        inputs = self._inputs
        if not isinstance(inputs, PoolingInputs):
            raise RequestError("this model generates, it does not pool: start it with --runner pooling for embeddings")
        chosen = inputs

        def work() -> list[PooledText]:
            return chosen.prepare(
                prompts, params, request_ids, priority=priority, add_special_tokens=add_special_tokens
            )

        return await self.run_text(work)

    async def pool(self, requests: Sequence[PooledText]) -> list[PoolingRequestOutput]:
        """Results of prepared texts, in their order; if this is cancelled, the rest is aborted. Raises as `submit`."""
        waiting: list[PooledResult] = self._submit(requests, PooledResult, lambda request: Pool.of(request.children[0]))
        try:
            return [await each.get() for each in waiting]
        finally:
            for each in waiting:
                each.close()

    def submit(self, requests: Sequence[TextRequest]) -> list[OutputStream]:
        """Send prepared requests to the engine, all or none; one stream of results for each.

        Raises `QueueFullError` when too many wait already, `EngineError` when the engine is dead or hangs, and
        `RequestError` for an id in use.
        """
        return self._submit(requests, OutputStream, lambda request: Add.of(request.children))

    def _submit(
        self,
        requests: Sequence[Any],
        reader: Callable[[Any, Callable[[str], None]], Any],
        message: Callable[[Any], ToEngine],
    ) -> list[Any]:
        """Send requests of either kind as `message` says; a `reader` of results for each."""
        self.check_health()
        self._check_queue(sum(len(request.children) for request in requests))
        names = [request.request_id for request in requests]
        known: set[str] = set()
        for name in names:
            if name in self._streams or name in known:
                raise RequestError(f"request_id={name!r} is in use", "request_id")
            known.add(name)
        self._heartbeat.expect(time.monotonic())
        self._idle.clear()
        readers = []
        for request in requests:
            made = reader(request, self._abort_one)
            self._streams[request.request_id] = made
            self._sequences += len(request.children)
            self._outputs.add(request, made)
            self._connection.send(message(request))
            readers.append(made)
        return readers

    def _check_queue(self, count: int) -> None:
        if self._max_queued is None:
            return
        room = self.info.max_num_seqs + self._max_queued - self._sequences
        if count > room:
            raise QueueFullError(
                f"{self._sequences} sequences run or wait already, of {self.info.max_num_seqs + self._max_queued}: "
                "try again later"
            )

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests; nothing more comes of them. Unknown ids are ignored."""
        names = [name for name in request_ids if name in self._streams]
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
        stream = self._streams.pop(request_id)
        self._sequences -= len(stream.request.children)
        if not self._streams:
            self._idle.set()
        return stream

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run."""
        self.check_health()
        number = next(self._numbers)
        reply = self._replies[number] = self._loop.create_future()
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
        """End every stream with `EngineError(message)`."""
        streams = list(self._streams.values())
        self.abort(list(self._streams))
        for stream in streams:
            stream.fail(EngineError(message))

    async def shutdown(self) -> None:
        """End the engine process; whoever still waits gets an error. May be called again."""
        if self._watch is not None:
            self._watch.cancel()
        self._error = self._error or EngineError("the engine is shut down")
        self.fail_all(str(self._error))
        with self._news_changed:
            # The listening thread must not wait for an event loop that is about to end.
            self._ended = True
            self._news_changed.notify()
        await asyncio.to_thread(self._connection.close)
        self._text_threads.shutdown(wait=False)

    async def _ping_when_idle(self) -> None:
        """Make sure that an engine which nobody uses would be missed."""
        while self._error is None:
            await asyncio.sleep(IDLE_PING_SECONDS)
            if not self._streams:
                self._heartbeat.expect(time.monotonic())
                self._connection.send(Ping())

    # News from the engine

    def _receive(self, message: FromEngine) -> None:
        """In the listening thread: hand a message to the event loop."""
        self._heartbeat.heard(time.monotonic(), busy=bool(self._streams))
        with self._news_changed:
            while len(self._news) >= MOST_NEWS and not self._ended:
                self._news_changed.wait()
        self._hand_over(message)

    def _end(self, error: EngineError) -> None:
        """In the listening thread: the process has ended."""
        self._hand_over(error)

    def _hand_over(self, news: FromEngine | EngineError) -> None:
        with self._news_changed:
            self._news.append(news)
            first = len(self._news) == 1
        if first:
            # One wake-up for all that arrives until the event loop has time.
            self._loop.call_soon_threadsafe(self._take_news)

    def _take_news(self) -> None:
        with self._news_changed:
            news, self._news = self._news, []
            self._news_changed.notify()
        for message in news:
            match message:
                case Outputs():
                    self._take_outputs(message)
                case Reply(number, result):
                    self._replies.pop(number).set_result(result)
                case EngineError():
                    self._fail(message)
        if not self._streams:
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
            stream = self._forget(output.request_id) if output.finished else self._streams[output.request_id]
            stream.put(output)
        for observer in self.observers:
            observer.observe(message.stats, processed.measurements)

    def _fail(self, error: EngineError) -> None:
        self._error = error
        self.fail_all(str(error))
        for reply in self._replies.values():
            reply.set_exception(error)
        self._replies.clear()
