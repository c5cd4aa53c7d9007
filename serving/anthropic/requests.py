"""Requests of Anthropic's Messages API.

The specification: https://docs.anthropic.com/en/api/messages, and the types in `anthropic.types`.
"""

from typing import Annotated, Any, Literal

from jaxllm.serving.http.body.base import Body, Ignored, OneOf, Refused, TemplateBody
from jaxllm.serving.http.body.bounds import (
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOOLS,
    AtLeastOne,
    NonEmpty,
    Positive,
    Text,
    at_most,
    documented,
)
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.responses import any_of, any_of_or_ignored

_ONE = "a message has exactly one answer"
_NO_TOOLS = "this server runs no tools"
_NOT_BILLED = "this server does not bill"
_NOT_COMPACTED = "compaction is not supported: ask for a summary in a message"
_NOT_EDITED = "context editing and compaction are not supported"
_OTHER = "this is a field of OpenAI's API; the Messages API has "


class _Cached(Body, kw_only=True):
    cache_control: Any = None
    """Accepted, without effect: every prefix is cached."""


class MessagesText(TemplateBody, kw_only=True):
    """Text; chat templates see other fields, too."""

    type: Literal["text"]
    text: str
    cache_control: Any = None
    """Accepted, without effect: every prefix is cached."""
    citations: list[Any] | None = None
    """Accepted, without effect."""
    parsed_output: Any = None
    """Accepted, without effect: clients put the text there as an object."""


class MessagesImageSource(Body, kw_only=True):
    """Where an image is."""

    type: Literal["base64", "url"]
    url: str | None = None
    """Of type url: an address, https."""
    media_type: str | None = None
    """Of type base64: such as image/png. The content tells the format."""
    data: str | None = None
    """Of type base64: the file."""


class MessagesImage(_Cached, kw_only=True):
    """An image, for models that see."""

    type: Literal["image"]
    source: MessagesImageSource
    transformations: Any = None
    """Accepted, without effect: images get the size that the model's image processor gives them."""


_TEXT = documented(**any_of("MessagesText"))
_TEXT_KIND = OneOf({"text": MessagesText})
_RESULT = documented(**any_of("MessagesText", "MessagesImage"))
_RESULT_KIND = OneOf({"text": MessagesText, "image": MessagesImage})


class MessagesToolUse(_Cached, kw_only=True):
    """A call that the model made before."""

    type: Literal["tool_use"]
    id: NonEmpty
    name: NonEmpty
    input: Any = None
    """The arguments, an object; what is none counts as no arguments."""
    caller: Annotated[Any, Ignored("only the model itself calls tools", ({"type": "direct"},))] = None
    toolset_name: Annotated[Any, Ignored("toolsets are not supported")] = None


class MessagesToolResult(_Cached, kw_only=True):
    """The result of a tool."""

    type: Literal["tool_result"]
    tool_use_id: NonEmpty
    """The call that it answers."""
    content: str | list[Annotated[dict[str, Any], _RESULT, _RESULT_KIND]] | None = None
    is_error: bool | None = None
    """Accepted, without effect: the model reads what content says."""
    toolset_name: Annotated[Any, Ignored("toolsets are not supported")] = None


class MessagesThinking(Body, kw_only=True):
    """The model's earlier reasoning, for chat templates that show it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    """Accepted, without effect: thinking is not signed here."""


class MessagesRedactedThinking(Body, kw_only=True):
    """Thinking that nobody here can read; it is left out."""

    type: Literal["redacted_thinking"]
    data: str


BLOCK_KINDS: dict[str, type[Body]] = {
    "text": MessagesText,
    "image": MessagesImage,
    "tool_use": MessagesToolUse,
    "tool_result": MessagesToolResult,
    "thinking": MessagesThinking,
    "redacted_thinking": MessagesRedactedThinking,
}
"""Blocks that are understood, by type."""

_BLOCK = documented(**any_of(*(kind.__name__ for kind in BLOCK_KINDS.values())))
_BLOCK_KIND = OneOf(BLOCK_KINDS)


class MessagesMessage(TemplateBody, kw_only=True):
    """A message of the conversation; chat templates see other fields, too."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Annotated[dict[str, Any], _BLOCK, _BLOCK_KIND]], at_most(MOST_PARTS)]


class MessagesTool(_Cached, kw_only=True):
    """A tool that the model may call."""

    type: Literal["custom"] | None = None
    name: NonEmpty
    description: str | None = None
    input_schema: dict[str, Any]
    """The arguments, as JSON Schema."""
    strict: bool | None = None
    """Whether calls must fit the schema."""
    input_examples: list[dict[str, Any]] | None = None
    """Accepted, without effect."""
    eager_input_streaming: bool | None = None
    """Accepted, without effect: arguments are always sent as they come."""
    defer_loading: Annotated[Any, Ignored("tool search is not supported", (False,))] = None
    allowed_callers: Annotated[Any, Ignored("only the model itself calls tools", (["direct"],))] = None


class MessagesToolChoice(Body, kw_only=True):
    """Which tools the model is to call."""

    type: Literal["auto", "any", "tool", "none"]
    """auto: it decides. any: at least one. tool: this one. none: it answers in words."""
    name: str | None = None
    """With tool: its name."""
    disable_parallel_tool_use: bool | None = None
    """At most one call."""


class ThinkingSettings(Body, kw_only=True):
    """Whether and how long the model is to think; where thinking is left out, the chat template decides."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: AtLeastOne | None = None
    """With enabled: most tokens of thinking, fewer than max_tokens."""
    display: Literal["summarized", "omitted"] | None = None
    """omitted: the thinking is not returned."""


class MessagesFormat(Body, kw_only=True):
    """Constraint on the text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]
    """The schema that the text fits."""


class OutputSettings(Body, kw_only=True):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """As reasoning_effort of chat completions."""
    format: MessagesFormat | None = None


_Messages = Annotated[list[MessagesMessage], at_most(MOST_MESSAGES, minItems=1)]
_System = str | Annotated[list[Annotated[dict[str, Any], _TEXT, _TEXT_KIND]], at_most(MOST_PARTS)]
_TOOL_KIND = OneOf(
    {"custom": MessagesTool},
    default=lambda _: "custom",
    drop_others=True,
    elsewhere={"function": 'a tool of messages is {"name": ..., "description": ..., "input_schema": ...}'},
)
_Tools = Annotated[
    list[Annotated[dict[str, Any], documented(**any_of_or_ignored("MessagesTool", "custom")), _TOOL_KIND]],
    at_most(MOST_TOOLS),
]


class MessagesRequest(GenerationRequest, kw_only=True):
    """A conversation to be answered: Anthropic's fields, and those of chat completions for sampling."""

    messages: _Messages
    """The conversation so far. The answer goes on with a last message of the assistant."""
    max_tokens: AtLeastOne
    """Most tokens to generate, of thinking too."""
    system: _System | None = None
    """The messages so far."""
    stop_sequences: list[Text] | None = None
    """Strings that end the text; they are not part of it."""
    tools: _Tools | None = None
    """Tools that the model may call; Anthropic's own tools run nowhere here and are ignored."""
    tool_choice: MessagesToolChoice | None = None
    """Which of them the model is to call; default auto."""
    thinking: ThinkingSettings | None = None
    """Whether the model is to think."""
    output_config: OutputSettings | None = None
    """How the answer is to be."""
    metadata: dict[str, Any] | None = None
    """Accepted, without effect."""
    chat_template: str | None = None
    """A chat template (Jinja) for this request; rejected unless the server trusts them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template."""
    request_id: str | None = None
    """Part of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""
    cache_control: Any = None
    """Accepted, without effect: every prefix is cached."""
    service_tier: Literal["auto", "standard_only"] | None = None
    """Accepted; there is one tier."""
    speed: Literal["standard", "fast"] | None = None
    """Accepted, without effect."""
    inference_geo: str | None = None
    """Accepted, without effect."""
    user_profile_id: str | None = None
    """Accepted, without effect."""
    workspace_id: str | None = None
    """Accepted, without effect."""

    n: Annotated[Any, Refused(_ONE, (1,))] = None
    stop: Annotated[Any, Refused(f"{_OTHER}stop_sequences", ([],))] = None
    stream_options: Annotated[Any, Ignored("streams always include usage")] = None
    response_format: Annotated[Any, Refused(f"{_OTHER}output_config.format", ({"type": "text"},))] = None
    thinking_token_budget: Annotated[Any, Refused(f"{_OTHER}thinking.budget_tokens", (-1,))] = None
    prompt_logprobs: Annotated[Any, Ignored("messages have no logprobs; see /v1/chat/completions")] = None
    logprob_token_ids: Annotated[Any, Ignored("messages have no logprobs; see /v1/chat/completions")] = None
    return_token_ids: Annotated[Any, Ignored("messages have no token IDs; see /v1/chat/completions", (False,))] = None
    return_tokens_as_token_ids: Annotated[Any, Ignored("messages have no logprobs", (False,))] = None
    container: Annotated[Any, Ignored(_NO_TOOLS)] = None
    mcp_servers: Annotated[Any, Ignored(_NO_TOOLS, ([],))] = None
    context_management: Annotated[Any, Ignored(_NOT_EDITED)] = None
    diagnostics: Annotated[Any, Ignored("there are none")] = None
    billing_policy: Annotated[Any, Ignored(_NOT_BILLED)] = None
    fallbacks: Annotated[Any, Ignored("fallback models are not supported", ([],))] = None
    fallback_credit_token: Annotated[Any, Ignored(_NOT_BILLED)] = None
    compaction: Annotated[Any, Refused(_NOT_COMPACTED)] = None
    thread: Annotated[Any, Refused("conversations are not stored: send all messages", ({"type": "create"},))] = None


class CountTokensRequest(Body, kw_only=True):
    """A conversation whose tokens are to be counted."""

    model: str | None = None
    """Which model: one of /v1/models. Left out, it is the first of them."""
    messages: _Messages
    """The conversation so far."""
    system: _System | None = None
    """The messages so far."""
    tools: _Tools | None = None
    """Tools that the model may call."""
    tool_choice: MessagesToolChoice | None = None
    """Which of them the model is to call; default auto."""
    thinking: ThinkingSettings | None = None
    """Whether the model is to think."""
    output_config: OutputSettings | None = None
    """How the answer is to be."""
    chat_template: str | None = None
    """A chat template (Jinja) for this request; rejected unless the server trusts them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template."""
    cache_control: Any = None
    """Accepted, without effect."""
    speed: Literal["standard", "fast"] | None = None
    """Accepted, without effect."""
    user_profile_id: str | None = None
    """Accepted, without effect."""
    workspace_id: str | None = None
    """Accepted, without effect."""
    context_management: Annotated[Any, Ignored(_NOT_EDITED)] = None
    mcp_servers: Annotated[Any, Ignored(_NO_TOOLS, ([],))] = None
    billing_policy: Annotated[Any, Ignored(_NOT_BILLED)] = None
    compaction: Annotated[Any, Refused(_NOT_COMPACTED)] = None
