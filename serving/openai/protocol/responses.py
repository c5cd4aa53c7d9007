"""Requests of the Responses API."""

from typing import Annotated, Any, Literal

from jaxllm.serving.http.body.base import Body, Ignored, KnownValues, OneOf, Refused
from jaxllm.serving.http.body.bounds import (
    MOST_MESSAGES,
    MOST_TOOLS,
    AtLeastOne,
    FromZero,
    OrMinusOne,
    Positive,
    at_most,
    documented,
)
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.response_items import ITEM_KINDS, TOOL_KINDS, kind_of_untyped

LOGPROBS = "message.output_text.logprobs"
"""What `include` may ask for."""

_ONE = "a response has exactly one answer"


def any_of(*names: str) -> dict[str, Any]:
    """Keywords of JSON Schema for an object that is one of these Structs."""
    return {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}


def any_of_or_ignored(name: str, type_name: str, **others: str) -> dict[str, Any]:
    """Keywords of JSON Schema for an object of this Struct, whose type is `type_name`, or of another type.

    `others` are types by their Structs.
    """
    types = [type_name, *others.values()]
    other = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string", "not": {"enum": types}}},
    }
    return {"anyOf": [*any_of(name, *others)["anyOf"], other]}


_ITEM = documented(**any_of(*(kind.__name__ for kind in ITEM_KINDS.values())))
_ITEM_KINDS = OneOf(ITEM_KINDS, default=kind_of_untyped)
_TOOL = documented(**any_of_or_ignored("ResponseTool", "function", CustomTool="custom", NamespaceTool="namespace"))
_TOOL_KINDS = OneOf(TOOL_KINDS, drop_others=True)


class TextFormat(Body, kw_only=True):
    """What the text is to be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    """With json_schema: a name for the schema."""
    schema: dict[str, Any] | None = None
    """With json_schema: the schema."""
    strict: bool | None = None
    """With json_schema: accepted; the text always fits the schema."""
    description: str | None = None
    """Accepted, without effect."""


class TextSettings(Body, kw_only=True):
    """How the text is to be."""

    format: TextFormat | None = None
    """Plain text, or JSON."""
    verbosity: Annotated[
        Any, Ignored("this model has one verbosity; ask for shorter or longer answers in a message", ("medium",))
    ] = None


class ReasoningSettings(Body, kw_only=True):
    """How the model is to think."""

    effort: str | None = None
    """As reasoning_effort of chat completions."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted, without effect: the reasoning itself is returned."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The older name of summary."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """Accepted, without effect: the chat template decides what it shows of earlier reasoning."""
    mode: Annotated[Any, Ignored("this model has one mode", ("standard",))] = None


class ResponsesRequest(GenerationRequest, kw_only=True):
    """A conversation, or what is new in it, to be answered."""

    input: str | Annotated[list[Annotated[dict[str, Any], _ITEM, _ITEM_KINDS]], at_most(MOST_MESSAGES, minItems=1)]
    """A text, which is a message of the user, or a list of items."""
    instructions: str | None = None
    """A message of the system before the input; of an earlier response's there is nothing left."""
    previous_response_id: str | None = None
    """A stored response that this one continues: all its items come before the input."""
    store: bool | None = None
    """Keep the response, to be retrieved and continued; default true, where the server keeps any."""
    background: bool | None = None
    """Answer at once and run on; the response can be polled, streamed again, and cancelled. Needs store."""
    max_output_tokens: AtLeastOne | None = None
    """Most tokens to generate, of reasoning too; default: the room left in the model's context."""
    text: TextSettings | None = None
    """Options of the text."""
    tools: Annotated[list[Annotated[dict[str, Any], _TOOL, _TOOL_KINDS]], at_most(MOST_TOOLS)] | None = None
    """Functions that the model may call; OpenAI's own tools run nowhere here and are ignored."""
    tool_choice: str | dict[str, Any] | None = None
    """auto, none, required, or {type: function, name}, or {type: allowed_tools, mode, tools}."""
    parallel_tool_calls: bool | None = None
    """Whether the model may call several functions at once; default true."""
    reasoning: ReasoningSettings | None = None
    """Options of the reasoning."""
    include: Annotated[list[str], KnownValues((LOGPROBS,)), at_most(64)] | None = None
    """What to add: message.output_text.logprobs; all else is ignored."""
    top_logprobs: OrMinusOne | None = None
    """Most likely alternatives to return at each place, -1: all; only with message.output_text.logprobs in include."""
    truncation: Literal["auto", "disabled"] | None = None
    """auto: leave out the oldest items when the input is longer than the model's context."""
    metadata: dict[str, str] | None = None
    """Up to 16 short texts, which the response repeats."""
    include_reasoning: bool | None = None
    """Whether to return the reasoning; default true."""
    chat_template: str | None = None
    """A chat template (Jinja) for this request; rejected unless the server trusts them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template."""
    service_tier: str | None = None
    """Accepted; there is one tier, default."""
    max_tool_calls: FromZero | None = None
    """Accepted, without effect: it is for tools that run on the server."""
    safety_identifier: str | None = None
    """Accepted, without effect."""
    prompt_cache_key: str | None = None
    """Accepted, without effect: every prefix is cached; cache_salt separates users."""
    prompt_cache_options: dict[str, Any] | None = None
    """Accepted, without effect: every prefix is cached as long as there is room."""
    prompt_cache_retention: str | None = None
    """Accepted, without effect: prefixes are kept as long as there is room."""

    request_id: str | None = None
    """Part of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""

    enable_response_messages: bool | None = None
    """Give input_messages and output_messages too: prompt and reply as the model read and wrote them."""

    n: Annotated[Any, Refused(_ONE, (1,))] = None
    prompt_logprobs: Annotated[Any, Ignored("responses have no logprobs of the prompt; see /v1/chat/completions")] = (
        None
    )
    return_token_ids: Annotated[Any, Ignored("responses have no token IDs; see /v1/chat/completions", (False,))] = None
    response_format: Annotated[Any, Refused("use text.format", ({"type": "text"},))] = None
    conversation: Annotated[Any, Refused("conversations are not supported; use previous_response_id")] = None
    previous_input_messages: Annotated[Any, Refused("use previous_response_id, or send everything as input", ([],))] = (
        None
    )
    context_management: Annotated[Any, Ignored("compaction is not supported; see truncation", ([],))] = None
    personality: Annotated[Any, Ignored("this model has one personality; describe another in instructions")] = None
    moderation: Annotated[Any, Ignored("moderation is not supported")] = None
    prompt: Annotated[Any, Refused("prompt templates are not supported: send instructions and input")] = None


class RetrieveQuery(Body, kw_only=True):
    """Query parameters of retrieving a response."""

    stream: bool | None = None
    """Send the events again, those to come too; only for responses made with background and stream."""
    starting_after: FromZero | None = None
    """With stream: only the events after the one of this sequence_number."""
    include: list[str] | None = None
    """Accepted, without effect: a response is kept as it was made."""
    include_obfuscation: bool | None = None
    """Accepted, without effect: events are never padded."""


class InputItemsQuery(Body, kw_only=True):
    """Query parameters of listing input items."""

    after: str | None = None
    """Only the items after the one of this id."""
    limit: Annotated[int, documented(minimum=1, maximum=100)] | None = None
    """Most items to return, from 1 to 100; default 20."""
    order: Literal["asc", "desc"] | None = None
    """desc, the default: the last one first."""
    include: list[str] | None = None
    """Accepted, without effect."""
