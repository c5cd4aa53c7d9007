"""`AsyncLLMEngine`: `AsyncLLM` with vLLM's constructor, whose engine starts by itself, and its methods."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

from jaxllm.config import EngineConfig
from jaxllm.engine.control import PauseMode
from jaxllm.errors import EngineError
from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.arguments import EngineArgs
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.llm.foreign_arguments import refuse_foreign
from jaxllm.serving.llm.weights import NewWeights
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.text.cached_tokenizer import whole_of
from jaxllm.serving.text.outputs import RequestOutput
from jaxllm.serving.text.prompts import Prompt


class AsyncLLMEngine:
    """Text in, text out, for many callers at once on one event loop, with the engine in a process of its own.

        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="demo"))
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=32), "request-1"):
            print(output.outputs[0].text)
        engine.shutdown()

    The engine starts at once where an event loop runs, otherwise with the first request, and belongs to that event
    loop. What is wrong with the options is raised when it is made, and what is wrong with the model by the first
    request. `AsyncLLM` has fewer names, and is started by `await AsyncLLM.start(...)`.
    """

    def __init__(
        self, config: EngineConfig, start: Callable[[EngineConfig], Awaitable[AsyncLLM]] | None = None
    ) -> None:
        """See `from_engine_args`. `start` starts the engine of these options."""
        self.config = config
        self._start = start or _start_quietly
        self._starting: asyncio.Future[AsyncLLM] | None = None
        self._ended = False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._begin()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: Any = None,
    ) -> Self:
        """An engine with these options; the others change nothing. Raises `ConfigError` for what is wrong with them."""
        del start_engine_loop, usage_context, stat_loggers
        return cls(engine_args.create_engine_config())

    @classmethod
    def from_vllm_config(cls, vllm_config: EngineConfig, *_: Any, **__: Any) -> Self:
        """An engine with these options; what follows them changes nothing."""
        return cls(vllm_config)

    # Requests

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: Any = None,
        trace_headers: Any = None,
        *,
        tokenization_kwargs: Any = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `AsyncLLM.generate`; of `tokenization_kwargs` only None is possible."""
        del trace_headers
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        llm = await self._engine()
        results = llm.generate(
            prompt,
            sampling_params,
            request_id,
            lora_request=lora_request,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
        )
        try:
            async for output in results:
                yield output
        finally:
            await results.aclose()

    async def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: Any = None,
        **settings: Any,
    ) -> AsyncGenerator[Any, None]:
        """An iterator over the results of a request, which begins when it is first read."""
        del arrival_time
        method: Any = self.encode if isinstance(params, PoolingParams) else self.generate
        results: AsyncGenerator[Any, None] = method(prompt, params, request_id, lora_request, **settings)
        return results

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        lora_request: Any = None,
        trace_headers: Any = None,
        priority: int = 0,
        tokenization_kwargs: Any = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """As `AsyncLLM.encode`; of `tokenization_kwargs` only None is possible."""
        del trace_headers
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        llm = await self._engine()
        async for output in llm.encode(
            prompt, pooling_params, request_id, lora_request=lora_request, priority=priority
        ):
            yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End one request or several; see `AsyncLLM.abort`."""
        (await self._engine()).abort(request_id)

    # The engine

    def get_tokenizer(self) -> Any:
        """The `transformers` tokenizer. Raises `EngineError` before the engine has started."""
        tokenizer = self._started().tokenizer
        assert tokenizer is not None
        return whole_of(tokenizer)

    @property
    def tokenizer(self) -> Any:
        """As `get_tokenizer`."""
        return self.get_tokenizer()

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run. There is no connector."""
        del reset_running_requests, reset_connector
        return await (await self._engine()).reset_prefix_cache()

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begin a trace in `profiler_dir`. Raises `RequestError` where none is given."""
        del profile_prefix
        await (await self._engine()).start_profile()

    async def stop_profile(self) -> None:
        """Write the trace. Raises `RequestError` where none was begun."""
        await (await self._engine()).stop_profile()

    async def reset_mm_cache(self) -> None:
        """Nothing: what is given as pixels or samples is not cached, and servers cache files themselves."""

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Tasks of the model: generate, or ways of pooling."""
        pooling = (await self._engine()).info.pooling
        return ("generate",) if pooling is None else tuple(pooling.tasks)

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """As `AsyncLLM.sleep`."""
        await (await self._engine()).sleep(level, mode)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """As `AsyncLLM.wake_up`."""
        await (await self._engine()).wake_up(tags)

    async def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        return await (await self._engine()).is_sleeping()

    async def pause_generation(
        self, *, mode: PauseMode = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """As `AsyncLLM.pause_generation`."""
        await (await self._engine()).pause_generation(
            mode=mode, wait_for_inflight_requests=wait_for_inflight_requests, clear_cache=clear_cache
        )

    async def resume_generation(self) -> None:
        """Go on after a pause."""
        await (await self._engine()).resume_generation()

    async def is_paused(self) -> bool:
        """Whether the engine was paused."""
        return await (await self._engine()).is_paused()

    async def update_weights(self, weights: "NewWeights | AsyncIterable[tuple[str, Any]]") -> int:
        """As `AsyncLLM.update_weights`; vLLM's form of it, for a transfer engine, is another."""
        return await (await self._engine()).update_weights(weights)

    async def reload_weights(self) -> int:
        """Read the weights of the model's checkpoint again."""
        return await (await self._engine()).reload_weights()

    async def get_weight_version(self) -> str:
        """How often weights were replaced, as text."""
        return str((await self._engine()).state().weights_version)

    async def check_health(self) -> None:
        """Raise `EngineError`, saying why, when the engine is dead or hangs."""
        (await self._engine()).check_health()

    async def wait_for_requests_to_drain(self, drain_timeout: int = 300) -> None:
        """Wait until nothing is in flight. Raises `TimeoutError` when that takes longer. No more requests after it."""
        if not await (await self._engine()).drain(drain_timeout):
            raise TimeoutError(f"requests are still in flight after {drain_timeout} s")

    async def do_log_stats(self) -> None:
        """Nothing: statistics are for servers, at /metrics."""

    async def is_tracing_enabled(self) -> bool:
        """Whether traces are sent to a collector: never."""
        return False

    def get_num_unfinished_requests(self) -> int:
        """Requests in flight."""
        return 0 if self._llm is None else self._llm.num_unfinished

    @property
    def is_running(self) -> bool:
        """Whether requests are taken: also when the engine is still to start."""
        return not self._ended and not self.errored

    @property
    def is_stopped(self) -> bool:
        """Whether no more requests are taken."""
        return not self.is_running

    @property
    def errored(self) -> bool:
        """Whether the engine has failed."""
        return self._failure() is not None

    @property
    def dead_error(self) -> BaseException:
        """Why it has failed."""
        return self._failure() or EngineError("the engine has not failed")

    def shutdown(self, timeout: float | None = None) -> Awaitable[None] | None:
        """End the engine process; whoever still waits gets an error. May be called again. To be awaited, or not."""
        del timeout
        self._ended = True
        if self._llm is not None:
            return self._llm.shutdown_now()
        starting = self._starting
        pending = starting is not None and not starting.done() and not starting.get_loop().is_closed()
        if starting is not None and pending:
            starting.cancel()
        try:
            ended = asyncio.get_running_loop().create_future()
        except RuntimeError:
            return None
        if starting is not None and pending:
            starting.add_done_callback(lambda _: _resolve(ended))
        else:
            ended.set_result(None)
        return ended

    shutdown_background_loop = shutdown

    def __del__(self) -> None:
        """One that was dropped ends its process. The last reference may go in any thread."""
        starting: asyncio.Future[AsyncLLM] | None = getattr(self, "_starting", None)
        if starting is None or self._ended:
            return
        loop = starting.get_loop()
        with suppress(RuntimeError):  # closed meanwhile, or while it still started
            if loop.is_closed():
                _end(starting)
            else:
                loop.call_soon_threadsafe(_end, starting)

    # Inside

    def _begin(self) -> None:
        self._starting = asyncio.ensure_future(self._start(self.config))
        # Whoever waits for it gets its error; if nobody does, there is nobody to tell.
        self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _engine(self) -> AsyncLLM:
        """The engine, which is started if need be. Raises as `AsyncLLM.start`."""
        if self._ended:
            raise EngineError("this engine has been shut down: create a new one")
        if self._starting is None:
            self._begin()
        assert self._starting is not None
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            is_ours = waiter is not None and waiter.cancelling() > 0
            if self._ended and self._starting.cancelled() and not is_ours:
                raise EngineError("this engine was shut down during start-up: create a new one") from None
            raise

    @property
    def _llm(self) -> AsyncLLM | None:
        starting = self._starting
        if starting is None or not starting.done() or starting.cancelled() or starting.exception() is not None:
            return None
        return starting.result()

    def _started(self) -> AsyncLLM:
        llm = self._llm
        if llm is None:
            raise EngineError("the engine has not started yet: await a request or check_health() first")
        return llm

    def _failure(self) -> BaseException | None:
        starting = self._starting
        if starting is None or not starting.done() or starting.cancelled():
            return None
        if starting.exception() is not None:
            return starting.exception()
        try:
            starting.result().check_health()
        except EngineError as error:
            return error
        return None


def _end(starting: "asyncio.Future[AsyncLLM]") -> None:
    """End an engine that has started, or is starting."""
    if not starting.done():
        starting.cancel()
    elif not starting.cancelled() and starting.exception() is None:
        starting.result().shutdown_now()


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _start_quietly(config: EngineConfig) -> Awaitable[AsyncLLM]:
    return AsyncLLM.start(config, log_level="warning")
