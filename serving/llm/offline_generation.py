"""Generation in a script: what the methods of `LLM` do with an engine that generates."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import numpy as np

from jaxllm.errors import RequestError
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.llm_engine import LLMEngine
from jaxllm.serving.llm.offline import OfflineRuns
from jaxllm.serving.llm.progress import UseTqdm
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.messages import Conversation
from jaxllm.serving.text.outputs import Delta, RequestOutput
from jaxllm.serving.text.prompts import PROCESSOR_KWARGS, Prompt, checked_kwargs

Params = SamplingParams | Sequence[SamplingParams] | None
Adapters = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all prompts, or one for each."""


class OfflineGeneration:
    """One engine, whose requests `runs` runs. `chat_template` (Jinja text) is used in place of the model's own."""

    def __init__(self, engine: LLMEngine, runs: OfflineRuns, chat_template: str | None) -> None:
        self._engine, self._runs, self._chat_template = engine, runs, chat_template

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        use_tqdm: UseTqdm,
        *,
        priority: int | Sequence[int] | None = None,
        add_special_tokens: bool = True,
        lora_request: Adapters = None,
    ) -> list[RequestOutput]:
        """Results of prompts, see `LLM.generate`."""
        requests = self._prepare(
            prompts, params, priority=priority, add_special_tokens=add_special_tokens, lora_request=lora_request
        )
        return self._runs.run(self._engine, requests, use_tqdm)

    def enqueue(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        *,
        priority: int | Sequence[int] | None = None,
        add_special_tokens: bool = True,
        lora_request: Adapters = None,
    ) -> list[str]:
        """Queue prompts, see `LLM.enqueue`."""
        requests = self._prepare(
            prompts, params, priority=priority, add_special_tokens=add_special_tokens, lora_request=lora_request
        )
        self._runs.enqueue(self._engine, requests)
        return [request.request_id for request in requests]

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        *,
        priority: int | Sequence[int] | None = None,
        add_special_tokens: bool = True,
        lora_request: Adapters = None,
    ) -> Generator[Delta, None, None]:
        """Outputs of prompts as they come, see `LLM.stream`. Raises at once what is wrong with any of them."""
        requests = self._prepare(
            prompts,
            params,
            priority=priority,
            add_special_tokens=add_special_tokens,
            stream=True,
            lora_request=lora_request,
        )
        return self._deltas(requests)

    def _deltas(self, requests: Sequence[TextRequest]) -> Generator[Delta, None, None]:
        with closing(self._runs.stream(self._engine, requests)) as outputs:
            for place, output in outputs:
                for part in output.outputs:
                    yield Delta.of(part, place)

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        *,
        priority: int | Sequence[int] | None,
        add_special_tokens: bool,
        stream: bool = False,
        lora_request: Adapters = None,
    ) -> list[TextRequest]:
        return self._engine.inputs.prepare(
            prompts,
            self._engine.default_params if params is None else params,
            self._runs.names(len(prompts)),
            priority=0 if priority is None else priority,
            stream=stream,
            add_special_tokens=add_special_tokens,
            lora_request=lora_request,
        )

    def chat(
        self,
        messages: Any,
        params: Params,
        use_tqdm: UseTqdm,
        *,
        priority: int | Sequence[int] | None,
        lora_request: Adapters = None,
        **settings: Any,
    ) -> list[RequestOutput]:
        """Answers to conversations, see `LLM.chat`; `settings` are those of the template."""
        prompts = self._render_all(messages, settings)
        return self.generate(
            prompts, params, use_tqdm, priority=priority, add_special_tokens=False, lora_request=lora_request
        )

    def enqueue_chat(
        self,
        messages: Any,
        params: Params,
        *,
        priority: int | Sequence[int] | None,
        lora_request: Adapters = None,
        **settings: Any,
    ) -> list[str]:
        """Queue conversations, see `LLM.enqueue_chat`."""
        prompts = self._render_all(messages, settings)
        return self.enqueue(prompts, params, priority=priority, add_special_tokens=False, lora_request=lora_request)

    def stream_chat(
        self,
        messages: Any,
        params: Params,
        *,
        priority: int | Sequence[int] | None,
        lora_request: Adapters = None,
        **settings: Any,
    ) -> Generator[Delta, None, None]:
        """Answers as they come, see `LLM.stream_chat`."""
        prompts = self._render_all(messages, settings)
        return self.stream(prompts, params, priority=priority, add_special_tokens=False, lora_request=lora_request)

    def _render_all(self, messages: Any, settings: Mapping[str, Any]) -> list[Prompt]:
        prompts: list[Prompt] = []
        conversations = _as_conversations(messages)
        for index, conversation in enumerate(conversations):
            try:
                prompts.append(self._prompt_of(conversation, **settings))
            except RequestError as error:
                if len(conversations) == 1:
                    raise
                raise RequestError(f"conversation {index}: {error}", error.parameter) from error
        return prompts

    def _prompt_of(
        self, conversation: Conversation, *, mm_processor_kwargs: Mapping[str, Any] | None = None, **settings: Any
    ) -> Prompt:
        kwargs, taker = checked_kwargs(mm_processor_kwargs), self._engine.chat_media
        if taker is None:
            return self.render_chat(conversation, **settings)
        messages, taken = taker.take(conversation, kwargs)
        text = self.render_chat(messages, media=taker.media, written=taker.written, **settings)
        return {"prompt": text, MEDIA: taken, PROCESSOR_KWARGS: kwargs} if taken else text

    def render_chat(self, messages: Conversation, *, chat_template: str | None = None, **settings: Any) -> str:
        """The prompt of one conversation."""
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError("chat needs a tokenizer, but skip_tokenizer_init is set", "messages")
        return render_chat(tokenizer, messages, chat_template=chat_template or self._chat_template, **settings)


def _as_conversations(messages: Any) -> list[Conversation]:
    """Conversations as a list, also where a single one was given."""
    several = isinstance(messages, Sequence) and messages and not isinstance(messages[0], (Mapping, str))
    return list(messages) if several else [cast(Conversation, messages)]


def as_prompts(prompts: Any, processor_kwargs: Mapping[str, Any] | None = None) -> list[Prompt]:
    """Prompts as a list, also where a single one was given. Raises `RequestError` for what is neither.

    `processor_kwargs` are those of prompts with images that have none of their own.
    """
    listed = _as_list(prompts)
    return [_with_kwargs(each, processor_kwargs) for each in listed] if processor_kwargs else listed


def _with_kwargs(prompt: Prompt, kwargs: Mapping[str, Any]) -> Prompt:
    has_images = isinstance(prompt, Mapping) and prompt.get(MEDIA) and not prompt.get(PROCESSOR_KWARGS)
    return {**cast("Mapping[str, Any]", prompt), PROCESSOR_KWARGS: kwargs} if has_images else prompt


def _as_list(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)):
        return [cast(Prompt, prompts)]
    if isinstance(prompts, np.ndarray):
        if prompts.dtype.kind in "UOT":
            # An array of strings or objects, such as a column of a table, becomes a list.
            return _as_list(prompts.tolist())
        return [cast(Prompt, prompts)] if prompts.ndim == 1 else list(prompts)
    try:
        items = list(prompts)
    except TypeError:
        kind = type(prompts).__name__
        raise RequestError(
            f"prompts: expected a string, token IDs, or a list of prompts, got {kind}", "prompt"
        ) from None
    # A flat list of integers is one prompt given as token ids.
    return [items] if items and all(isinstance(item, (int, np.integer)) for item in items) else items
