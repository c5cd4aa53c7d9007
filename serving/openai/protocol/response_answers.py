"""Responses of the Responses API."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.openai.protocol.logprobs import ChosenLogprob
from jaxllm.serving.openai.protocol.response_items import ItemStatus

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]


class OutputText(Answer, kw_only=True, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    """With message.output_text.logprobs in include."""


class OutputMessage(Answer, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class FunctionCallItem(Answer, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function by the model."""

    id: str
    status: ItemStatus
    call_id: str
    """What the result names the call by."""
    name: str
    arguments: str
    """JSON text."""
    namespace: str | UnsetType = UNSET
    """Where the function was given in a namespace."""


class CustomCallItem(Answer, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool by the model."""

    id: str
    status: ItemStatus
    call_id: str
    """What the result names the call by."""
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    """Where the tool was given in a namespace."""


class ReasoningText(Answer, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Text of the model's reasoning."""

    text: str


class ReasoningItem(Answer, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning."""

    id: str
    status: ItemStatus
    summary: tuple[Any, ...] = ()
    """Always empty: the reasoning itself is in content."""
    content: list[ReasoningText]


OutputItem = OutputMessage | FunctionCallItem | CustomCallItem | ReasoningItem


class InputTokensDetails(Answer, kw_only=True):
    """Where input tokens came from."""

    cached_tokens: int
    """Input tokens whose computation the prefix cache saved."""
    cache_write_tokens: int = 0
    """Always 0: writing to the cache is part of computing."""


class OutputTokensDetails(Answer, kw_only=True):
    """What output tokens were for."""

    reasoning_tokens: int


class ResponseUsage(Answer, kw_only=True):
    """Tokens that went in and came out."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Answer, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter", "repetition"]
    """max_output_tokens: max_output_tokens, or the model's context, were full. repetition: see repetition_detection."""


class ResponseError(Answer, kw_only=True):
    """Why a response failed."""

    code: Literal["server_error"] = "server_error"
    message: str


class RawMessage(Answer, kw_only=True):
    """What the model read or wrote; where the two differ, the tokens are right."""

    type: Literal["raw_message_tokens"] = "raw_message_tokens"
    message: str
    tokens: list[int]


class ModelResponse(Answer, kw_only=True):
    """A response: the settings of its request, and the items that the model made."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | FunctionCallItem | CustomCallItem | ReasoningItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    """Whether it can be retrieved and continued."""
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    """Once it has ended."""
    user: str | None
    input_messages: list[RawMessage] | UnsetType = UNSET
    """With enable_response_messages: the prompt."""
    output_messages: list[RawMessage] | UnsetType = UNSET
    """With enable_response_messages, once it has ended: the reply."""


class DeletedResponse(Answer, kw_only=True):
    """A response that is no more."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: Literal[True] = True


class InputTokens(Answer, kw_only=True):
    """How many tokens a conversation has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemPage(Answer, kw_only=True):
    """Input items of a response."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    """Empty where there are none."""
    last_id: str
    has_more: bool
