"""Answers a file of requests through the server's routes, as many at a time as keep the engine busy."""

import asyncio
import itertools
import sys
import time
import uuid
from collections.abc import Iterator

import msgspec
from starlette.types import ASGIApp

from jaxllm.config import EngineConfig
from jaxllm.config.progress import Progress, silent
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.llm.progress import GenerationProgress
from jaxllm.serving.openai.adapters import load_modules
from jaxllm.serving.openai.batches.client import post
from jaxllm.serving.openai.batches.input import BatchInput
from jaxllm.serving.openai.batches.job import AnsweredBody
from jaxllm.serving.openai.batches.lines import BatchAnswer, BatchError, BatchRequest, BatchResponse
from jaxllm.serving.openai.batches.record import BatchRecord
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.app import create_app
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.telemetry.logs import configure_logging
from jaxllm.serving.telemetry.metrics import Metrics

INTERRUPTED = 130
_UNAVAILABLE = 503
# A request with which the engine ends again and again gets an error.
_ATTEMPTS = 3


async def run_batch(
    config: EngineConfig,
    options: ServerOptions,
    batch: BatchInput,
    record: BatchRecord,
    *,
    concurrency: int | None,
    progress: Progress = silent,
) -> int:
    """Load the model and answer what is not answered yet; the result is the exit code.

    `concurrency` requests are in flight at a time; None: twice as many as the engine runs at once. Raises
    `ConfigError`, `CapacityError` or `EngineError`; what is in `record` by then stays.
    """
    configure_logging(options.log_level, json_lines=options.log_format == "json")
    with Signals() as signals:
        loading = asyncio.ensure_future(
            AsyncLLM.start(
                config,
                step_timeout=options.step_timeout,
                progress=progress,
                chat_template=options.chat_template,
                log_level=options.log_level,
                json_logs=options.log_format == "json",
                max_restarts=options.max_restarts,
                restart_window=options.restart_window,
                max_request_crashes=options.max_request_crashes,
            )
        )
        if not await before(signals.first, loading):
            await cancel(loading)
            return INTERRUPTED
        llm = loading.result()
        try:
            work = BatchRun(llm, options, batch, record)
            return await work.run(signals, concurrency or 2 * llm.info.max_running)
        finally:
            await llm.shutdown()


class BatchRun:
    """One run over the requests that have no answer yet."""

    def __init__(self, llm: AsyncLLM, options: ServerOptions, batch: BatchInput, record: BatchRecord) -> None:
        names = options.served_model_name or (llm.info.model,)
        state = ServerState(
            llm=llm,
            options=options,
            metrics=Metrics(llm.info, names[0], options.metrics_prefix, llm.config.parallel.data_parallel_size),
            model_names=names,
            accepting=True,
            created=int(time.time()),
        )
        self._llm, self._state = llm, state
        self._app: ASGIApp = create_app(state)
        self._batch = batch
        self._record = record
        self._stopping = False
        self._written = 0
        self._failed = 0

    async def run(self, signals: Signals, concurrency: int) -> int:
        """Answer all, or until a signal comes: then what is in flight is finished, or dropped at a second one."""
        await load_modules(self._state)
        left = len(self._batch.ids) - len(self._record.done)
        # One iterator for all workers: each takes the next request.
        requests = self._batch.requests(self._record.done.copy())
        with GenerationProgress(left, sys.stderr.isatty(), "Answered requests") as bar:
            workers = [self._work(requests, bar) for _ in range(min(concurrency, left))]
            working = asyncio.gather(*workers)
            try:
                if not await before(signals.first, working):
                    self._stopping = True
                    bar.say("finishing running requests; press Ctrl-C again to drop them")
                    await before(signals.second, working)
                if working.done():
                    working.result()
            finally:
                await cancel(working)
                bar.close()
                self._report(left)
        return 0 if self._written == left else INTERRUPTED

    async def _work(self, requests: Iterator[BatchRequest], bar: GenerationProgress) -> None:
        for request in requests:
            if self._stopping:
                return
            answer = await self._answer_despite_restarts(request)
            self._record.add(answer)
            self._written += 1
            if answer.response is None or answer.response.status_code >= 400:
                self._failed += 1
            bar.count(*_tokens(answer))

    async def _answer_despite_restarts(self, request: BatchRequest) -> BatchAnswer:
        """The answer of an engine that lived. Raises `EngineError` when there is none any more: it stays open."""
        for attempt in itertools.count(1):
            answer = await self._answer(request)
            # Whatever went wrong because the engine is gone is not the request's fault, or not this one's alone.
            await self._llm.wait_for_engine()
            unavailable = answer.response is not None and answer.response.status_code == _UNAVAILABLE
            if not unavailable or attempt == _ATTEMPTS:
                return answer
        raise AssertionError

    async def _answer(self, request: BatchRequest) -> BatchAnswer:
        request_id = uuid.uuid4().hex
        made = BatchAnswer(f"batch_req_{request_id}", request.custom_id, None, None)
        try:
            answer = await post(self._app, request.url, bytes(request.body), request_id)
        except Exception as error:  # noqa: BLE001  (a bug in one route must not end the batch)
            made.error = BatchError("internal_error", f"{type(error).__name__}: {error}")
            return made
        made.response = BatchResponse(answer.status, request_id, msgspec.Raw(answer.body))
        return made

    def _report(self, left: int) -> None:
        total, done = len(self._batch.ids), len(self._record.done)
        before_this = f", {done} were answered before" if done else ""
        failed = f", {self._failed} of them with an error" if self._failed else ""
        sys.stderr.write(f"jaxllm: {self._written} of {left} requests answered{failed}{before_this}\n")
        if self._written < left:
            sys.stderr.write(
                f"jaxllm: {left - self._written} of {total} requests remain; run the same command again to continue\n"
            )


def _tokens(answer: BatchAnswer) -> tuple[int, int]:
    """Prompt and output tokens, where the answer tells them."""
    if answer.response is None:
        return 0, 0
    try:
        usage = msgspec.json.decode(answer.response.body, type=AnsweredBody).usage
    except msgspec.DecodeError:
        usage = None
    if usage is None:
        return 0, 0
    return usage.prompt_tokens + usage.input_tokens, usage.completion_tokens + usage.output_tokens
