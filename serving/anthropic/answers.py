"""Responses and events of Anthropic's Messages API."""

from typing import Any, Literal

from jaxllm.serving.http.body.base import Answer


class TextBlock(Answer, kw_only=True, tag_field="type", tag="text"):
    """Text of the model."""

    text: str
    citations: list[Any] | None = None


class ThinkingBlock(Answer, kw_only=True, tag_field="type", tag="thinking"):
    """The model's reasoning."""

    thinking: str
    signature: str = ""
    """Always empty: thinking is not signed here."""


class ToolUseBlock(Answer, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool by the model."""

    id: str
    """ID by which the result refers to the call."""
    name: str
    input: dict[str, Any]
    """The arguments; empty if the call was cut off."""


Block = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ThinkingCount(Answer, kw_only=True):
    """Output tokens by purpose."""

    thinking_tokens: int


class MessagesUsage(Answer, kw_only=True):
    """Tokens that went in and came out."""

    input_tokens: int
    """Tokens of the prompt that had to be computed."""
    cache_creation_input_tokens: int = 0
    """Always 0: writing to the cache is part of computing."""
    cache_read_input_tokens: int
    """Tokens of the prompt whose computation the prefix cache saved."""
    output_tokens: int
    output_tokens_details: ThinkingCount
    service_tier: Literal["standard"] = "standard"


class MessagesAnswer(Answer, kw_only=True):
    """The model's message."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None = None
    """end_turn: it ended by itself. max_tokens: max_tokens, or the model's context, were full. stop_sequence: a string
    of stop_sequences came, or a token of stop_token_ids. tool_use: it waits for the result of a tool."""
    stop_sequence: str | None = None
    """The string that ended it."""
    usage: MessagesUsage


class TokenCount(Answer, kw_only=True):
    """How many tokens a conversation has."""

    input_tokens: int


class MessagesErrorDetails(Answer, kw_only=True):
    """The error."""

    type: str
    """The kind of error, for programs."""
    message: str
    """Says what was given, what is allowed, and what to do."""


class MessagesError(Answer, kw_only=True):
    """An error."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetails
    request_id: str


class MessagesEvent(Answer, kw_only=True):
    """An event of a stream."""

    type: str


class MessageStart(MessagesEvent, kw_only=True):
    """The message begins."""

    type: Literal["message_start"] = "message_start"
    message: MessagesAnswer


class Ping(MessagesEvent, kw_only=True):
    """Nothing has happened."""

    type: Literal["ping"] = "ping"


class BlockStart(MessagesEvent, kw_only=True):
    """A block begins."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class MoreText(Answer, kw_only=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class MoreThinking(Answer, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class MoreInput(Answer, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of the arguments, which joined are JSON text."""

    partial_json: str


class BlockDelta(MessagesEvent, kw_only=True):
    """More of a block."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: MoreText | MoreThinking | MoreInput


class BlockStop(MessagesEvent, kw_only=True):
    """A block is complete."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class MessageEnd(Answer, kw_only=True):
    """Why a message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(MessagesEvent, kw_only=True):
    """The message has ended, with the usage of all of it."""

    type: Literal["message_delta"] = "message_delta"
    delta: MessageEnd
    usage: MessagesUsage


class MessageStop(MessagesEvent, kw_only=True):
    """The stream has ended."""

    type: Literal["message_stop"] = "message_stop"


EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
"""All events."""
