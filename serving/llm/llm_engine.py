"""The engine with text at both ends, one step at a time: what `LLM` runs, and what embedders may drive themselves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.control import PauseMode
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import ConfigError, EngineError, RequestError
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import as_request_ids
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.cumulative import Cumulative, wants_all_so_far, wants_stream
from jaxllm.serving.llm.foreign_arguments import refuse_foreign
from jaxllm.serving.llm.loading import (
    check_vocabulary,
    default_params,
    find_tokenizer,
    form_checker,
    load_tokenizer,
    prompt_media,
)
from jaxllm.serving.llm.weights import control_of, sleep
from jaxllm.serving.llm.worker import call, worker_of
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.cached_tokenizer import whole_of
from jaxllm.serving.text.engine import TextEngine
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.output_processor import OutputProcessor
from jaxllm.serving.text.outputs import RequestOutput
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.text.token_engine import TokenEngine
from jaxllm.serving.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jaxllm.serving.llm.arguments import EngineArgs
    from jaxllm.serving.llm.chat_media import ChatMedia
    from jaxllm.serving.llm.offline_metrics import Metric
    from jaxllm.serving.llm.pooling_llm_engine import PoolingLLMEngine
    from jaxllm.serving.telemetry.metrics import Metrics


class LLMEngine(TextEngine[TextRequest]):
    """Requests as text in, results as text out.

    `add_request`, then `step` while `has_unfinished_requests`. Not thread-safe.
    """

    def __init__(
        self,
        engine: TokenEngine,
        tokenizer: Tokenizer | None,
        inputs: InputProcessor,
        default_params: SamplingParams | None = None,
        metrics: "Metrics | None" = None,
        stream_interval: int = 1,
        media: MediaOptions | None = None,
    ) -> None:
        """`metrics` count what is measured; without them, nothing is. Streams bring `stream_interval` tokens a time.

        `media` says where images and sounds of conversations come from.
        """
        super().__init__(engine, tokenizer, OutputProcessor(tokenizer, metrics is not None, stream_interval))
        self.metrics = metrics
        self.inputs = inputs
        self.default_params = default_params or SamplingParams()
        self._waiting: list[RequestOutput] = []
        self._refused: list[tuple[str, RequestError]] = []
        self._so_far: dict[str, Cumulative] = {}
        self._media = media or MediaOptions()
        self._chat_media: ChatMedia | None = None

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        skip_tokenizer_init: bool = False,
        background: bool = False,
        progress: Progress = silent,
    ) -> Self:
        """`open_engine` for a model that generates. Raises `ConfigError`, also for others, and `CapacityError`."""
        engine = open_engine(config, skip_tokenizer_init=skip_tokenizer_init, background=background, progress=progress)
        if not isinstance(engine, cls):
            engine.close()
            raise ConfigError(f"{config.model.model} is a pooling model: use LLM and its embed(), score(), ...")
        return engine

    @classmethod
    def from_engine_args(cls, engine_args: "EngineArgs", *_: Any, **__: Any) -> Self:
        """`from_config`, of the options as vLLM's programs hand them around; what follows them has no effect."""
        config = engine_args.create_engine_config()
        return cls.from_config(config, skip_tokenizer_init=bool(getattr(engine_args, "skip_tokenizer_init", False)))

    @classmethod
    def from_vllm_config(cls, vllm_config: Any, *_: Any, **__: Any) -> Self:
        """`from_config`, under vLLM's name; what follows the configuration has no effect."""
        return cls.from_config(vllm_config)

    def close(self) -> None:
        """Free the engine and its device memory. Nothing can be run afterwards."""
        super().close()
        self.inputs.close()
        if self._chat_media is not None:
            self._chat_media.close()

    @property
    def chat_media(self) -> "ChatMedia | None":
        """What fetches and decodes images and sounds of conversations; None where these may have none."""
        if self._chat_media is None and (self.inputs.images is not None or self.inputs.sound is not None):
            # Most models take neither: starts are faster without the import.
            from jaxllm.serving.llm.chat_media import ChatMedia

            self._chat_media = ChatMedia(self.inputs, self._media)
        return self._chat_media

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Any = None,
        trace_headers: Any = None,
        priority: int = 0,
    ) -> None:
        """Queue one request. `params.output_kind` sets the content of each output: by default, everything so far.

        `arrival_time`, `tokenization_kwargs` and `trace_headers` are vLLM's: times are taken here, and of the others
        only None is possible. Raises `RequestError`.
        """
        del arrival_time, trace_headers
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        chosen = self.default_params if params is None else params
        stream = wants_stream(chosen)
        self.add(
            self.inputs.prepare(
                [prompt], chosen, [request_id], priority=priority, stream=stream, lora_request=lora_request
            )
        )
        if wants_all_so_far(chosen):
            self._so_far[request_id] = Cumulative()

    def step(self) -> list[RequestOutput]:
        """Run one step; its outputs, see `add_request`.

        Raises `RequestError` when the engine finds that it cannot serve a request (its grammar is too complex, say).
        That request is gone then, and the others can go on: the next call brings what this step brought for them.
        """
        if not self._refused:
            self._advance()
        if self._refused:
            request_id, error = self._refused.pop(0)
            self._so_far.pop(request_id, None)
            raise type(error)(f"request {request_id}: {error}", error.parameter)
        outputs, self._waiting = self._waiting, []
        return outputs

    def _advance(self) -> None:
        self.keep(*self.advance())

    def keep(self, outputs: Iterable[RequestOutput], refused: Iterable[tuple[str, RequestError]]) -> None:
        """Leave for `step` what came of the requests of `add_request` in a step that another caller ran."""
        self._waiting += [self._as_asked(output) for output in outputs]
        self._refused += refused

    def _as_asked(self, output: RequestOutput) -> RequestOutput:
        so_far = self._so_far.get(output.request_id)
        if so_far is None:
            return output
        if output.finished:
            del self._so_far[output.request_id]
        return so_far.add(output)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End one request, or several, without further outputs. Unknown ids are ignored."""
        names = as_request_ids(request_ids)
        for name in names:
            self._so_far.pop(name, None)
        super().abort_request(names)

    def abort_all(self) -> None:
        """End all requests without further outputs."""
        self._so_far.clear()
        super().abort_all()

    def get_num_unfinished_requests(self) -> int:
        """Requests that run or wait."""
        return len(self._outputs)

    def get_tokenizer(self) -> Any:
        """The `transformers` tokenizer, or None without one."""
        return None if self.tokenizer is None else whole_of(self.tokenizer)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached prefixes; False while requests run, also with `reset_running_requests`."""
        del reset_running_requests, reset_connector
        return self.engine.reset_prefix_cache()

    @property
    def engine_core(self) -> Any:
        """Methods that let the engine sleep, and give it other weights."""
        return control_of(self.engine)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Tasks of the model."""
        return ("generate",)

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Free the device memory until `wake_up`; see `LLM.sleep`."""
        sleep(self.engine_core, level, mode, self._run_on)

    def _run_on(self) -> None:
        # What is rejected is for the next `step` to raise: an engine that lets requests run on must come to its end.
        self._advance()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Bring back what sleeps: everything, or of "weights" and "kv_cache" what the tags name."""
        self.engine_core.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        return bool(self.engine_core.is_sleeping())

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begin a trace in `profiler_dir`. Raises `RequestError` where none is given."""
        del profile_prefix
        self.engine.start_profile()

    def stop_profile(self) -> None:
        """Write the trace. Raises `RequestError` where none was begun."""
        self.engine.stop_profile()

    def reset_mm_cache(self) -> None:
        """Forget images and sounds that were processed: files are decoded again."""
        if self._chat_media is not None:
            self._chat_media.forget()

    def do_log_stats(self) -> None:
        """Nothing: statistics are for servers, at /metrics, and `get_metrics`."""

    def do_log_stats_with_interval(self) -> None:
        """Nothing, as `do_log_stats`."""

    def get_metrics(self) -> list["Metric"]:
        """Metrics so far, see `LLM.get_metrics`. Raises `EngineError` if metrics are disabled."""
        from jaxllm.serving.llm.offline_metrics import snapshot

        if self.metrics is None:
            raise EngineError("metrics are disabled: create the LLM with disable_log_stats=False")
        return snapshot(self.metrics)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function of the worker, see `LLM.collective_rpc`; here it has no extension."""
        del timeout
        return [call(worker_of(self.engine, None), method, args, kwargs or {})]

    def has_unfinished_requests_dp(self, has_unfinished: bool) -> bool:
        """`has_unfinished`: engines in other processes are counted by `has_unfinished_requests` itself."""
        return has_unfinished

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._waiting or self._refused) or super().has_unfinished_requests()

    def advance(self) -> tuple[list[RequestOutput], list[tuple[str, RequestError]]]:
        """`step`, which raises for no request: the results, and the requests that it rejected, with the reasons."""
        processed = self._outputs.process(self.engine.step())
        if self.metrics is not None:
            stats = getattr(self.engine, "stats", None)  # engines in other processes tell nobody offline
            self.metrics.observe(None if stats is None else stats(), processed.measurements)
        for request_id, stop in processed.stopped:
            self.engine.finish_request(request_id, stop)
        if processed.aborted:
            self.engine.abort_request(processed.aborted)
        return processed.outputs, processed.refused


def open_engine(
    config: EngineConfig,
    *,
    skip_tokenizer_init: bool = False,
    background: bool = False,
    progress: Progress = silent,
    measure: bool = False,
    media: MediaOptions | None = None,
) -> "LLMEngine | PoolingLLMEngine":
    """Load model and tokenizer, side by side; with `background`, or if there are several, engines in other processes.

    The model decides whether it generates or pools; with `measure`, one that generates has metrics. `media`
    says where images of conversations come from. Raises `ConfigError` and `CapacityError`.
    """
    elsewhere = background or config.parallel.data_parallel_size > 1 or config.is_on_ray
    load = _background_engine if elsewhere else _engine_here
    with ThreadPoolExecutor(1, "load-tokenizer") as pool:
        loading = None
        if not skip_tokenizer_init:
            # Weights may take minutes to download and to read: not for nothing.
            find_tokenizer(config.model)
            # Importing and loading takes a second or two of one core, while the engine reads weights and compiles.
            loading = pool.submit(load_tokenizer, config.model)
        engine = load(config, progress)
        try:
            tokenizer = None if loading is None else loading.result()
            info = engine.info
            check_vocabulary(tokenizer, info.vocab_size)
            if info.pooling is not None:
                # Only here: models that generate start faster without the import.
                from jaxllm.serving.llm.pooling_llm_engine import PoolingLLMEngine

                return PoolingLLMEngine(engine, tokenizer, media)
            forms = form_checker(config, info, tokenizer) if config.structured.structured_outputs_canary else None
            makers = prompt_media(info, tokenizer, media or MediaOptions())
            inputs = InputProcessor(tokenizer, RequestLimits.of(info), info.eos_token_ids, forms, *makers)
            defaults = default_params(config.model, Path(info.model_folder))
            metrics = _metrics(info) if measure else None
            return LLMEngine(engine, tokenizer, inputs, defaults, metrics, config.output.stream_interval, media)
        except BaseException:
            engine.close()
            raise


def _metrics(info: EngineInfo) -> "Metrics":
    from jaxllm.serving.telemetry.metrics import Metrics

    return Metrics(info, info.model)


def _engine_here(config: EngineConfig, progress: Progress) -> TokenEngine:
    from jaxllm.load import load_engine

    return load_engine(config, progress)


def _background_engine(config: EngineConfig, progress: Progress) -> TokenEngine:
    from jaxllm.serving.ipc.client.background import BackgroundEngine

    return BackgroundEngine.from_config(config, progress)
