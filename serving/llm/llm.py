"""`LLM`: offline generation in a script or a notebook."""

import dataclasses
import logging
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from jaxllm.compat.vllm.options import OF_SCRIPTS, drop_noop_options
from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError, RequestError, short_for
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm import loading
from jaxllm.serving.llm.beam_search import BeamSearchOutput, BeamSearchParams, beams_of
from jaxllm.serving.llm.foreign_arguments import refuse_foreign
from jaxllm.serving.llm.llm_engine import LLMEngine, open_engine
from jaxllm.serving.llm.offline_generation import Adapters, OfflineGeneration, Params, as_prompts
from jaxllm.serving.llm.pooling_methods import PoolingMethods
from jaxllm.serving.llm.progress import LoadProgress, UseTqdm
from jaxllm.serving.llm.worker import find_extension
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.chat import load_chat_template
from jaxllm.serving.text.messages import Conversation
from jaxllm.serving.text.outputs import Delta, RequestOutput
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.text.repr import Results

if TYPE_CHECKING:
    from jaxllm.serving.llm.arguments import EngineArgs
    from jaxllm.serving.llm.offline_metrics import Metric

logger = logging.getLogger(__name__)

_MEDIA = [each.name for each in dataclasses.fields(MediaOptions)]


@short_for((ConfigError, RequestError, CapacityError))
class LLM(PoolingMethods):
    """A model, ready to generate.

        llm = LLM("demo")
        for output in llm.generate(["Once upon a time", "1 + 2 ="], SamplingParams(temperature=0, max_tokens=32)):
            print(output.prompt + output.outputs[0].text)

    `options` are the engine's (`docs/flags.md` lists them), under vLLM's names: `max_model_len`, `dtype`, ... Others of
    vLLM's are accepted, with a line in the log, where they change nothing. Device
    memory is freed by `close()`, at the end of a `with` block, or when the last reference goes. Calls are synchronous,
    so they work inside a running event loop too; threads take turns.

    Raises `ConfigError` for options, files or models that do not work, and `CapacityError` for what does not fit.
    """

    def __init__(
        self,
        model: str = "demo",
        *,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        skip_tokenizer_init: bool = False,
        background_engine: bool = False,
        show_progress: bool | None = None,
        worker_extension_cls: str = "",
        **options: Any,
    ) -> None:
        """Load the model and compile its steps.

        `chat_template` is Jinja text or a file. `hf_overrides` may be a function too: it gets the configuration that
        `transformers` reads, and returns it changed. With `skip_tokenizer_init`, prompts and results are token ids.
        `background_engine` runs the engine in a process of its own, which leaves this one its memory and its CPU time;
        with `data_parallel_size` there are so many of them.
        `show_progress` shows bars while loading; by default only in a terminal or notebook.
        `worker_extension_cls`, as `package.module.Class`, has methods for `collective_rpc`.
        """
        worker_extension = find_extension(worker_extension_cls)
        # vLLM's name, which asks for `get_metrics` where it is False. By default it is None, and nothing is measured.
        measure = options.get("disable_log_stats") is False
        change = options.pop("hf_overrides") if callable(options.get("hf_overrides")) else None
        # vLLM's own of these names are among those without effect, for other models.
        media = {name: options.pop(name) for name in _MEDIA if name in options}
        # vLLM's programs hand around all options, with None for those that are not given.
        media = {name: value for name, value in media.items() if value is not None}
        known = drop_noop_options(options, OF_SCRIPTS, logger.warning)
        media |= {name: known.pop(name) for name in _MEDIA if name in known}
        if change is not None:
            # Other options, such as `rope_theta`, stand for overrides too.
            called = loading.called_overrides(change, {"model": model, **known})
            known["hf_overrides"] = {**(known.get("hf_overrides") or {}), **called}
        config = EngineConfig.from_options({"model": model, "tokenizer": tokenizer, **known})
        self._chat_template = None if chat_template is None else load_chat_template(chat_template)
        with LoadProgress(show_progress) as progress:
            engine = open_engine(
                config,
                skip_tokenizer_init=skip_tokenizer_init,
                background=background_engine,
                progress=progress,
                measure=measure,
                media=MediaOptions(**media),
            )
        super().__init__(engine, config.parallel.data_parallel_size, worker_extension)

    @classmethod
    def from_engine_args(cls, engine_args: "EngineArgs") -> Self:
        """With options as vLLM's programs hand them around."""
        return cls(**dataclasses.asdict(engine_args))

    @property
    def llm_engine(self) -> LLMEngine:
        """The engine beneath, for driving it step by step. It stays open as long as anybody holds it.

        Raises `EngineError` after `close()`, and `RequestError` when the model pools instead of generating.
        """
        engine = self._open()
        if not isinstance(engine, LLMEngine):
            raise RequestError(
                "this is a pooling model: use embed(), classify(), ..., or load a generative one with LLM(..., "
                "runner='generate')"
            )
        return engine

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Any = None,
        mm_processor_kwargs: Any = None,
    ) -> Results[RequestOutput]:
        """Continue prompts; the results are in the order of the prompts.

        A prompt is text, a list of token ids, or a dictionary with `prompt` or `prompt_token_ids` and optionally
        `cache_salt`. `sampling_params` are one for all prompts or one per prompt, by default
        `get_default_sampling_params()`; `priority` (lower runs first) is one number for all, or one per prompt.
        `use_tqdm` shows a progress bar, or is a function that makes one. `lora_request` is an adapter for all,
        or one or None for each prompt. `mm_processor_kwargs` are fields of the image processor for prompts that have
        none of their own. `tokenization_kwargs` is vLLM's: only None is possible.

        Raises `RequestError` when anything is wrong with any of them, before any is run: the message names the prompt.
        """
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        outputs = self._generation.generate(
            as_prompts(prompts, mm_processor_kwargs),
            sampling_params,
            use_tqdm,
            priority=priority,
            lora_request=lora_request,
        )
        return Results(outputs)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        lora_request: Adapters = None,
        priority: int | Sequence[int] | None = None,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Any = None,
        mm_processor_kwargs: Any = None,
    ) -> list[str]:
        """Queue prompts for `wait_for_completion`; their ids. Arguments and errors are as in `generate`."""
        del use_tqdm
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        return self._generation.enqueue(
            as_prompts(prompts, mm_processor_kwargs), sampling_params, priority=priority, lora_request=lora_request
        )

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Any = None,
        mm_processor_kwargs: Any = None,
    ) -> list[str]:
        """Queue conversations for `wait_for_completion`; their ids. Arguments and errors are as in `chat`."""
        del use_tqdm
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        return self._generation.enqueue_chat(
            messages,
            sampling_params,
            priority=priority,
            lora_request=lora_request,
            chat_template=chat_template,
            chat_template_content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )

    def wait_for_completion(
        self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: UseTqdm = True
    ) -> Results[RequestOutput]:
        """Run what was queued, also by other calls of `enqueue`, to its end: the results, in that order.

        `output_type` is what they must be, and is checked. Raises `TypeError` where they are not.
        """
        if output_type is not None and not issubclass(RequestOutput, output_type):
            raise TypeError(f"output_type={output_type}: must be RequestOutput for queued requests")
        return Results(self._runs.run_queued(self.llm_engine, use_tqdm))

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        priority: int | Sequence[int] | None = None,
        lora_request: Adapters = None,
    ) -> Generator[Delta, None, None]:
        """Continue prompts, and yield the text as it comes.

            for delta in llm.stream("Once upon a time"):
                print(delta.text, end="", flush=True)

        With several prompts, or `n` above 1, deltas are interleaved: `delta.prompt_index` and `delta.index` say whose
        they are. Leaving the loop and dropping the iterator, or closing it, aborts the rest. Other calls may be made
        meanwhile. Arguments and errors are as in `generate`; they are checked at once.
        """
        return self._generation.stream(
            as_prompts(prompts), sampling_params, priority=priority, lora_request=lora_request
        )

    def stream_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        priority: int | Sequence[int] | None = None,
        **settings: Any,
    ) -> Generator[Delta, None, None]:
        """Answer conversations as `chat` does, with its settings, and yield the text as it comes, as `stream` does."""
        return self._generation.stream_chat(messages, sampling_params, priority=priority, **settings)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: Adapters = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> Results[BeamSearchOutput]:
        """The `beam_width` best continuations of each prompt, as a beam search finds them.

        Prompts, errors and the order of results are as in `generate`. `concurrency_limit` changes nothing: the engine
        runs as many at once as it has room for.
        """
        del concurrency_limit
        outputs = self._generation.generate(
            as_prompts(prompts), params.to_sampling_params(), use_tqdm, lora_request=lora_request
        )
        return Results(beams_of(output, params, self.llm_engine.tokenizer) for output in outputs)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Any = None,
        mm_processor_kwargs: Any = None,
        *,
        allow_special_tokens: bool = False,
    ) -> Results[RequestOutput]:
        """Answer a conversation, or each of several: lists of OpenAI's messages.

        The prompt is made by the model's chat template, or by `chat_template` (Jinja text). `tools` are OpenAI's
        function descriptions; `chat_template_kwargs` go to the template. It gets contents as it takes them (`auto`),
        or as `chat_template_content_format` says: always as a text (`string`), always as parts (`openai`).
        `continue_final_message` lets the model go on with the last message (with `add_generation_prompt=False`). The
        text of a special token in a message is encoded as text, and with `allow_special_tokens` as the token. The rest
        is as in `generate`.
        """
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        outputs = self._generation.chat(
            messages,
            sampling_params,
            use_tqdm,
            priority=priority,
            lora_request=lora_request,
            chat_template=chat_template,
            chat_template_content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
            allow_special_tokens=allow_special_tokens,
        )
        return Results(outputs)

    def render_chat(self, messages: Conversation, *, chat_template: str | None = None, **settings: Any) -> str:
        """The prompt that `chat` makes of one conversation, from the same arguments."""
        return self._generation.render_chat(messages, chat_template=chat_template, **settings)

    @property
    def _generation(self) -> OfflineGeneration:
        return OfflineGeneration(self.llm_engine, self._runs, self._chat_template)

    def get_default_sampling_params(self) -> SamplingParams:
        """A copy of the parameters of requests that bring none: what the model's generation_config.json says."""
        return self.llm_engine.default_params.clone()

    def get_metrics(self) -> list["Metric"]:
        """Metrics so far: the numbers that a server reports at /metrics. Only with `disable_log_stats=False`.

        Raises `EngineError` without that.
        """
        with self._runs.lock:
            return self.llm_engine.get_metrics()

    def __repr__(self) -> str:
        if self._engine is None:
            return "LLM(closed)"
        info = self._engine.engine.info
        room = f"max_model_len={info.max_model_len}, max_num_seqs={info.max_num_seqs}"
        devices = f"{info.num_devices} x {info.device_kind}" if info.num_devices > 1 else info.device_kind
        tasks = "" if info.pooling is None else f", tasks={list(info.pooling.tasks)}"
        return f"LLM({info.model!r}, {room}, dtype={info.dtype!r}, device={devices!r}{tasks})"
