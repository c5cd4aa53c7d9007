"""Chat completions."""

from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer, Ignored, OneOf
from jaxllm.serving.http.body.bounds import (
    MOST_DOCUMENTS,
    MOST_MESSAGES,
    MOST_TOOLS,
    AtLeastOne,
    OrMinusOne,
    at_most,
)
from jaxllm.serving.openai.protocol.beam_tree import BeamTree
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.logprobs import ChatLogprobs, PromptLogprobs
from jaxllm.serving.openai.protocol.messages import Function, Message, Tool
from jaxllm.serving.openai.protocol.timing import RequestTiming
from jaxllm.serving.openai.protocol.usage import Usage

_TOOL_KINDS = OneOf({"function": Tool}, default=lambda _: "function", drop_others=True)


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """A conversation to be continued."""

    messages: Annotated[list[Message], at_most(MOST_MESSAGES, minItems=1)]
    """The conversation so far."""
    max_completion_tokens: AtLeastOne | None = None
    """Most tokens to generate; default: the room left in the model's context."""
    max_tokens: AtLeastOne | None = None
    """The older name of max_completion_tokens."""
    logprobs: bool | None = None
    """Return the log-probabilities of the generated tokens."""
    top_logprobs: OrMinusOne | None = None
    """Most likely alternatives to return at each place, -1: all; only with logprobs."""
    return_prompt_text: bool | None = None
    """Return what the chat template made of the conversation, too."""
    tools: Annotated[list[Annotated[Tool, _TOOL_KINDS]], at_most(MOST_TOOLS)] | None = None
    """Functions that the model may call; tools of other types are ignored."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto (the default), required, or an object that names a function or the tools that are allowed."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may have several calls; default true."""
    functions: Annotated[list[Function], at_most(MOST_TOOLS)] | None = None
    """The older name of tools: functions; an answer calls at most one of them, in function_call."""
    function_call: str | dict[str, Any] | None = None
    """The older name of tool_choice: none, auto, or an object with the name of a function."""
    reasoning_effort: str | None = None
    """Goes to the chat template, which may know it."""
    chat_template: str | None = None
    """A chat template (Jinja) for this request; rejected unless the server trusts them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template."""
    enable_thinking: bool | None = None
    """An argument for the chat template that many know; chat_template_kwargs comes before it."""
    documents: Annotated[list[dict[str, Any]], at_most(MOST_DOCUMENTS)] | None = None
    """Documents for chat templates that show them to the model."""
    add_generation_prompt: bool | None = None
    """End the prompt with the beginning of the model's answer; default true."""
    continue_final_message: bool | None = None
    """Let the model go on with the last message instead of answering it."""
    echo: bool | None = None
    """With a last message of the assistant: begin the answer with its content."""
    include_reasoning: bool | None = None
    """Whether to return the reasoning; default true."""
    service_tier: str | None = None
    """Accepted; there is one tier, default."""
    metadata: dict[str, Any] | None = None
    """Accepted, without effect: chat completions are not stored."""
    safety_identifier: str | None = None
    """Accepted, without effect."""
    prompt_cache_key: str | None = None
    """Accepted, without effect: every prefix is cached; cache_salt separates users."""
    prompt_cache_options: dict[str, Any] | None = None
    """Accepted, without effect: every prefix is cached as long as there is room."""
    prompt_cache_retention: str | None = None
    """Accepted, without effect: prefixes are kept as long as there is room."""

    audio: Annotated[Any, Ignored("this model writes text only")] = None
    modalities: Annotated[Any, Ignored("this model writes text only", (["text"],))] = None
    moderation: Annotated[Any, Ignored("moderation is not supported")] = None
    store: Annotated[Any, Ignored("chat completions are not stored; see /v1/responses", (False,))] = None
    verbosity: Annotated[
        Any, Ignored("this model has one verbosity; ask for shorter or longer answers in a message", ("medium",))
    ] = None
    web_search_options: Annotated[Any, Ignored("this model does not search the web")] = None


class CalledFunctionAnswer(Answer, kw_only=True):
    """The function that a call is for."""

    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolCallAnswer(Answer, kw_only=True):
    """A call of a tool."""

    id: str
    type: str = "function"
    function: CalledFunctionAnswer


class AssistantMessage(Answer, kw_only=True):
    """The model's answer."""

    role: str
    content: str | None
    """Null where there are only calls or reasoning."""
    refusal: str | None = None
    annotations: tuple[Any, ...] = ()
    audio: None = None
    function_call: CalledFunctionAnswer | None = None
    """The call, where the request has functions instead of tools."""
    reasoning: str | None = None
    """Where the server tells it from content."""
    reasoning_content: str | UnsetType | None = UNSET
    """Another name of reasoning, where the server tells it from content."""
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET
    """Where there are any."""


class ChatChoice(Answer, kw_only=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    """stop: it ended by itself or at a stop string. length: max_completion_tokens or the model's context were full.
    tool_calls: it ended by itself, and has calls of tools that tool_choice does not name; function_call, where the
    request has functions. repetition: it went in circles, see repetition_detection."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; null for the model's own end token."""
    token_ids: list[int] | None = None
    """With return_token_ids."""
    beam_tree: BeamTree | UnsetType = UNSET
    """With return_beam_tree, in the first choice."""


class ChatCompletion(Answer, kw_only=True):
    """The answers to a chat request."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | None = None
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None
    """With prompt_logprobs."""
    prompt_token_ids: list[int] | None = None
    """With return_token_ids."""
    prompt_text: str | UnsetType = UNSET
    """With return_prompt_text."""
    kv_transfer_params: dict[str, Any] | None = None
    """For the server that goes on with the prompt."""
    metrics: RequestTiming | UnsetType = UNSET
    """With --enable-per-request-metrics, for one answer."""


class FunctionDelta(Answer, kw_only=True):
    """New parts of a call's function."""

    name: str | UnsetType = UNSET
    """In the first delta of the call."""
    arguments: str
    """More of the JSON text."""


class ToolCallDelta(Answer, kw_only=True):
    """New parts of a tool call."""

    index: int
    """Which call of the answer this is."""
    id: str | UnsetType = UNSET
    """In the first delta of the call."""
    type: str | UnsetType = UNSET
    """In the first delta of the call: function."""
    function: FunctionDelta


class ChatDelta(Answer, kw_only=True, omit_defaults=True):
    """New parts of an answer."""

    role: str | None = None
    """In the first chunk."""
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """Another name of reasoning."""
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET
    """Where the request has functions instead of tools."""


class ChatChunkChoice(Answer, kw_only=True):
    """News of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    """In the last chunk."""
    stop_reason: str | int | UnsetType | None = UNSET
    """In the last chunk."""
    token_ids: list[int] | None = None
    """With return_token_ids."""


class ChatChunk(Answer, kw_only=True):
    """An event of a stream of answers; the last has no choices if the usage was asked for."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    service_tier: str | UnsetType = UNSET
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    """In the first chunk; null without return_token_ids."""
    prompt_text: str | UnsetType = UNSET
    """With return_prompt_text, in the first chunk."""
    metrics: RequestTiming | UnsetType = UNSET
    """With --enable-per-request-metrics, alongside the usage at the end."""
