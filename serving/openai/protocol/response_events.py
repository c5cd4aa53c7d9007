"""Events of the Responses API's streams; the deltas of text, which are most of them, are made by the writer."""

from typing import Literal

from msgspec import field

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.openai.protocol.logprobs import ChosenLogprob
from jaxllm.serving.openai.protocol.response_answers import (
    CustomCallItem,
    FunctionCallItem,
    ModelResponse,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

Lifecycle = Literal[
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]

PartStep = Literal["response.content_part.added", "response.content_part.done"]


class ResponseEvent(Answer, kw_only=True):
    """An event of a stream: what it is, and its number, counted from 0."""

    type: str
    sequence_number: int = 0


class LifecycleEvent(ResponseEvent, kw_only=True):
    """The response as a whole has come a step further."""

    type: Lifecycle
    response: ModelResponse


class ItemEvent(ResponseEvent, kw_only=True):
    """An item of the output begins or is complete."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputMessage | FunctionCallItem | CustomCallItem | ReasoningItem


class PartEvent(ResponseEvent, kw_only=True):
    """A part of an item's content begins or is complete."""

    type: PartStep
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class TextDelta(ResponseEvent, kw_only=True):
    """More text of a message."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[ChosenLogprob] = field(default_factory=list)


class TextDone(ResponseEvent, kw_only=True):
    """The text of a message is complete."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[ChosenLogprob] = field(default_factory=list)


class ReasoningDeltaEvent(ResponseEvent, kw_only=True):
    """More reasoning."""

    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningDone(ResponseEvent, kw_only=True):
    """The reasoning is complete."""

    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class ArgumentsDelta(ResponseEvent, kw_only=True):
    """More of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(ResponseEvent, kw_only=True):
    """The arguments of a call are complete."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    item_id: str
    output_index: int
    name: str
    arguments: str


class ErrorEvent(ResponseEvent, kw_only=True):
    """The stream ends with an error; response.failed says the rest."""

    type: Literal["error"] = "error"
    code: str | None
    message: str
    param: str | None


class CustomInputDelta(ResponseEvent, kw_only=True):
    """The input of a call of a custom tool, which comes at once."""

    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"
    item_id: str
    output_index: int
    delta: str


class CustomInputDone(ResponseEvent, kw_only=True):
    """The input of a call of a custom tool is complete."""

    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"
    item_id: str
    output_index: int
    input: str


EVENTS = (
    LifecycleEvent, ItemEvent, PartEvent, TextDelta, TextDone, ReasoningDeltaEvent, ReasoningDone, ArgumentsDelta,
    ArgumentsDone, CustomInputDelta, CustomInputDone, ErrorEvent,
)  # fmt: skip
"""All events."""
