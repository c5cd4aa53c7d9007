"""`AsyncLLM`: text in, text out, for many callers at once on one event loop, with the engine in its own process."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.stats import StepStats
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import ConfigError, EngineError, RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.owners import NOBODY, Owner
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.group import EngineGroup
from jaxllm.serving.ipc.client.launch import launch_with_devices
from jaxllm.serving.ipc.client.members import GroupOptions
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.client.resumption import MAX_REQUEST_CRASHES
from jaxllm.serving.ipc.messages import Add, Pool
from jaxllm.serving.llm import loading
from jaxllm.serving.llm.async_control import AsyncControl
from jaxllm.serving.llm.cumulative import Cumulative, wants_all_so_far, wants_stream
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.pooling.inputs import GivenPrompt, PooledText, PoolingInputs
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.pooling.processor import PooledResult, PoolingProcessor
from jaxllm.serving.text.chat import load_chat_template, render_chat
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.measurements import Observer
from jaxllm.serving.text.messages import Conversation
from jaxllm.serving.text.output_processor import OutputProcessor
from jaxllm.serving.text.outputs import RequestOutput
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.text.templates.sandbox import TemplateSandbox
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.structured.grammar_sandbox.checker import CanaryChecker

TEXT_THREADS = 2
"""Threads for tokenizing and chat templates: a long prompt in one leaves the other, and the event loop, free."""
TEMPLATE_THREADS = 2
"""Threads that wait for templates of requests, which processes render."""
CANARY_SECONDS = 1.0
"""After the engine is ready, the process that tries grammars is started, if no grammar has come before."""
Result = TypeVar("Result")


class RunText(Protocol):
    """Calls a function elsewhere."""

    def __call__(self, function: Callable[..., Result], /, *arguments: Any) -> "asyncio.Future[Result]":
        """The future result of the function."""


class AsyncLLM(AsyncControl):
    """Engine processes and their requests. Make one with `start`; everything belongs to the event loop of that call.

    It brings text to an `EngineGroup`, which has the requests in flight; of a model that generates with an
    `InputProcessor`, of one that pools with `PoolingInputs`.
    """

    def __init__(self, config: EngineConfig, engines: EngineGroup, chat_template: str | None) -> None:
        """See `start`."""
        super().__init__(engines)
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.default_params = SamplingParams()
        self.observers: list[Observer] = engines.state.observers
        """They see every message of the engines; a list to append to."""
        self.on_restart: list[Callable[[EngineInfo, int], None]] = engines.state.on_restart
        """Called when another engine has taken the place of one that ended; a list to append to."""
        self.loss: asyncio.Future[EngineError] = engines.loss
        """Done when all engines are gone for good, with the reason."""
        self.chat_template = chat_template
        """The operator's, as Jinja text; None: the model's own is used."""
        self._loop = asyncio.get_running_loop()
        self._text_threads = ThreadPoolExecutor(TEXT_THREADS, "text")
        self.run_text: RunText = partial(self._loop.run_in_executor, self._text_threads)
        """Runs work on text in a thread of its own kind, so that it delays nobody's stream."""
        self._template_threads = ThreadPoolExecutor(TEMPLATE_THREADS, "template")
        self.run_with_template: RunText = partial(self._loop.run_in_executor, self._template_threads)
        """`run_text` for work that renders a template of a request, which may take long."""
        self.templates = TemplateSandbox()
        """Renders such templates."""
        self.inputs: InputProcessor | PoolingInputs
        """Makes requests of prompts; safe to use from several threads."""
        self._forms: CanaryChecker | None = None
        self._canary_start: asyncio.TimerHandle | None = None
        self._numbers = itertools.count()
        # Of several processes before the same engines, none draws the same numbers as another.
        self._draws = itertools.count(secrets.randbits(62) if engines.is_guest else 0)

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        max_queued_requests: int | None = None,
        max_in_flight: int | None = None,
        max_queued_tokens: int | None = None,
        step_timeout: float = 120.0,
        progress: Progress = silent,
        chat_template: str | None = None,
        skip_tokenizer_init: bool = False,
        log_level: str = "info",
        json_logs: bool = False,
        launch: Launch = EngineProcess,
        launch_of: Callable[[int], Launch] | None = None,
        is_guest: bool = False,
        scale: Callable[[int, float], Awaitable[None]] | None = None,
        max_restarts: int | None = 0,
        restart_window: float = 600.0,
        max_request_crashes: int = MAX_REQUEST_CRASHES,
    ) -> Self:
        """Start the engine processes and load model and tokenizer, side by side.

        `max_queued_requests` limits the sequences that wait alongside those that can run, `max_in_flight` all that
        there are, `max_queued_tokens` the prompt tokens of requests without a token yet; None: no limit.
        An engine that says nothing for `step_timeout` seconds, although it should, hangs, and is killed. One that ends
        is started again `max_restarts` times within `restart_window` seconds (None: always). What it had goes on in the
        next one, or in another that lives. A request that was there `max_request_crashes` times in a row, without any
        news of it, gets a `RequestFaultError`; with 0 every one gets an `EngineError`.
        `chat_template` is Jinja text or a file; with `skip_tokenizer_init` prompts and results are token ids. `launch`
        starts an engine process, or `launch_of` tells by an engine's number how that is done. With `is_guest`
        another process has the engines, and `scale` changes how many there are. Raises `ConfigError`,
        `CapacityError` and `EngineError`.
        """
        if launch_of is None and config.parallel.data_parallel_size_local is not None:
            raise ConfigError("data_parallel_size_local: only `jaxllm serve` supports engines on other hosts; omit it")
        template = None if chat_template is None else load_chat_template(chat_template)
        if not skip_tokenizer_init:
            # Weights may take minutes to download and to read: not for nothing.
            await asyncio.to_thread(loading.find_tokenizer, config.model)
        options = GroupOptions(
            size=config.parallel.data_parallel_size,
            routing=config.parallel.data_parallel_routing,
            max_queued_requests=max_queued_requests,
            max_in_flight=max_in_flight,
            max_queued_tokens=max_queued_tokens,
            step_timeout=step_timeout,
            launch_of=launch_of or partial(launch_with_devices, launch, config),
            max_restarts=max_restarts,
            restart_window=restart_window,
            max_request_crashes=max_request_crashes,
            settings={"log_level": log_level, "json_logs": json_logs},
            local_engines=_local_engines(config.parallel),
            is_guest=is_guest,
            scale=scale,
        )
        engines = EngineGroup(options)
        llm = cls(config, engines, template)
        # Without one to load, the thread has nothing to do.
        load = loading.load_nothing if skip_tokenizer_init else loading.load_tokenizer_for_server
        tokenizer = llm.run_text(load, config.model)
        try:
            await engines.members.start(config, progress)
            llm._take_tokenizer(await tokenizer)
        except BaseException:
            tokenizer.cancel()
            await llm.shutdown()
            raise
        return llm

    def _take_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        info = self.info
        loading.check_vocabulary(tokenizer, info.vocab_size)
        self.tokenizer = tokenizer
        self.default_params = loading.default_params(self.config.model, Path(info.model_folder))
        if info.pooling is not None:
            images, _ = loading.prompt_media(info, tokenizer, None)
            self.inputs = PoolingInputs(tokenizer, info, images)
            self.engines.members.serve(PoolingProcessor)
        else:
            self._forms = loading.form_checker(self.config, info, tokenizer)
            self.inputs = InputProcessor(
                tokenizer,
                RequestLimits.of(info),
                info.eos_token_ids,
                self._forms,
                *loading.prompt_media(info, self.tokenizer, None),
            )
            # Starting it takes some of the processor, which others need more until the first requests are served.
            self._canary_start = self._loop.call_later(CANARY_SECONDS, self.run_text, self._forms.start)
            self.engines.members.serve(partial(OutputProcessor, tokenizer, True, self.config.output.stream_interval))

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""
        return self.engines.info

    @property
    def num_unfinished(self) -> int:
        """Requests in flight."""
        return len(self.engines)

    @property
    def engine_pids(self) -> list[int]:
        """Process ids of the engines."""
        return [engine.pid for engine in self.engines.engines]

    # Text

    async def render_chat(self, messages: Conversation, *, chat_template: str | None = None, **settings: Any) -> str:
        """The prompt of a conversation; see `jaxllm.serving.text.chat.render_chat`."""
        assert self.tokenizer is not None
        template = chat_template or self.chat_template
        return await self.run_text(partial(render_chat, self.tokenizer, messages, chat_template=template, **settings))

    # Generating

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue one prompt, with an adapter if one is given.

        `sampling_params.output_kind` sets the content of each result; default: all so far.
        `data_parallel_rank` is the number of the engine that shall do it; None: any may. Whoever stops reading aborts
        the request. Raises `RequestError`, `QueueFullError` and `EngineError`.
        """
        name = request_id if request_id is not None else f"generate-{next(self._numbers)}"
        chosen = self.default_params if sampling_params is None else sampling_params
        await self.try_grammar(chosen)
        stream = wants_stream(chosen)
        requests = await self.prepare(
            [prompt], chosen, [name], priority=priority, stream=stream, lora_request=lora_request
        )
        (results,) = self.submit(requests, data_parallel_rank)
        so_far = Cumulative() if wants_all_so_far(chosen) else None
        with closing(results):
            async for output in results:
                yield output if so_far is None else so_far.add(output)

    async def try_grammar(self, params: SamplingParams, owner: Owner = NOBODY) -> None:
        """Have the grammar of these parameters, if they have one, tried by the canary process, unless it was before.

        New grammars are tried a few at a time, in which owners take turns. If this is cancelled, a trial that nobody
        else waits for ends. What is wrong with the grammar `prepare` says. Raises `RequestError` and `QueueFullError`.
        """
        forms, form = self._forms, params.structured_outputs
        if forms is not None and form is not None:
            await asyncio.wrap_future(await self.run_text(forms.ask, form, owner.name))

    async def prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        request_ids: Sequence[str],
        *,
        priority: int = 0,
        stream: bool = False,
        add_special_tokens: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[TextRequest]:
        """Check and tokenize prompts, off the event loop. Raises `RequestError`.

        Grammars should have been tried before (`try_grammar`): here a thread for text waits for those that were not.
        """
        inputs = self.inputs
        if not isinstance(inputs, InputProcessor):
            raise RequestError("this is a pooling model: request embeddings or scores instead")
        settings: dict[str, Any] = {"priority": priority, "stream": stream, "add_special_tokens": add_special_tokens}
        settings["lora_request"] = lora_request
        return await self.run_text(partial(inputs.prepare, prompts, params, request_ids, **settings))

    def submit(self, requests: Sequence[TextRequest], data_parallel_rank: int | None = None) -> list[OutputStream]:
        """Send prepared requests to engines, all or none; one stream of results for each.

        Raises `QueueFullError` when too many wait already, `EngineError` when the engine is dead or hangs, and
        `RequestError` for an id in use.
        """
        for request in requests:
            for child in request.children:
                child.draw_number = next(self._draws)
        streams = [OutputStream(request, self.engines.drop) for request in requests]
        self.engines.submit(requests, streams, Add.of, data_parallel_rank)
        return streams

    # Pooling

    async def encode(
        self,
        prompt: Prompt,
        params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Pool one text, with an adapter if one is given: yields its one result.

        Raises `RequestError`, `QueueFullError` and `EngineError`.
        """
        name = request_id if request_id is not None else f"encode-{next(self._numbers)}"
        given: Any = {"priority": priority, "lora_request": lora_request}
        requests = await self.prepare_texts([prompt], params or PoolingParams(), [name], **given)
        (result,) = await self.pool(requests)
        yield result

    async def prepare_texts(
        self,
        prompts: Sequence[GivenPrompt],
        params: PoolingParams | Sequence[PoolingParams],
        request_ids: Sequence[str],
        *,
        priority: int = 0,
        add_special_tokens: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[PooledText]:
        """Check and tokenize texts for a pooling model, off the event loop. Raises `RequestError`."""
        inputs = self.inputs
        if not isinstance(inputs, PoolingInputs):
            raise RequestError("this is a generative model: start it with --runner pooling for embeddings")
        settings: dict[str, Any] = {
            "priority": priority,
            "add_special_tokens": add_special_tokens,
            "lora_request": lora_request,
        }
        return await self.run_text(partial(inputs.prepare, prompts, params, request_ids, **settings))

    async def pool(
        self,
        requests: Sequence[PooledText],
        data_parallel_rank: int | None = None,
        follow: Callable[[Sequence[PooledResult]], None] | None = None,
    ) -> list[PoolingRequestOutput]:
        """Results of prepared texts, in their order; if this is cancelled, the rest is aborted. Raises as `submit`.

        `follow` is given what is waited for, once the engine has the requests.
        """
        waiting = [PooledResult(request, self.engines.drop) for request in requests]
        self.engines.submit(requests, waiting, lambda children: Pool.of(children[0]), data_parallel_rank)
        if follow is not None:
            follow(waiting)
        try:
            return [await each.get() for each in waiting]
        finally:
            for each in waiting:
                each.close()

    # The engine

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests: whoever reads one gets what there is of it, with the finish reason "abort".

        Whoever waits for the result of a pooling model gets a `RequestError`. Unknown ids are ignored.
        """
        self.engines.abort(request_ids)

    def state(self) -> StepStats:
        """The engines' last states, together."""
        return self.engines.engine_state()

    def check_health(self) -> None:
        """Raise `EngineError`, saying why, when the engine is dead or hangs."""
        self.engines.check_health()

    async def wait_for_engine(self) -> None:
        """Wait while there is no engine. Raises `EngineError` when there will be none."""
        await self.engines.wait()

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing is in flight. False when that takes longer."""
        return await self.engines.drain(seconds)

    def fail_all(self, message: str) -> None:
        """End every stream with `EngineError(message)`."""
        self.engines.fail_all(message)

    async def shutdown(self) -> None:
        """End the engine process; whoever still waits gets an error. May be called again."""
        await self.engines.shutdown()
        self._close_text()

    def shutdown_now(self) -> "asyncio.Future[None] | None":
        """`shutdown` for who does not wait: everybody gets their errors at once, and the process ends in a thread.

        To be awaited or not; `asyncio.run` waits for it. None, and done, where the event loop is closed already.
        """
        if self._loop.is_closed():
            self.engines.end_processes()
            return None
        self.engines.close()
        self._close_text()
        return self._loop.run_in_executor(None, self.engines.end_processes)

    def _close_text(self) -> None:
        if self._canary_start is not None:
            self._canary_start.cancel()
        self.templates.close()
        for threads in (self._text_threads, self._template_threads):
            # The interpreter waits for what is left in them.
            threads.shutdown(wait=False, cancel_futures=True)
        if self._forms is not None:
            self._forms.close()


def _local_engines(parallel: ParallelOptions) -> int | None:
    """How many of the first engines run on this machine; None: all, also those that are added later."""
    if parallel.data_parallel_backend == "ray":
        return 0
    return None if parallel.data_parallel_size_local is None else parallel.engines_here
