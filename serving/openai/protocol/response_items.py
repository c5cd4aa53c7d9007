"""Items of the Responses API that requests bring: messages, calls of functions and their results, reasoning.

The specification: https://platform.openai.com/docs/api-reference/responses, and the types in `openai.types.responses`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from jaxllm.serving.http.body.base import Body, Ignored, Refused, TemplateBody
from jaxllm.serving.http.body.bounds import MOST_PARTS, NonEmpty, at_most

_NO_FILES = "parts with files are not supported; images have an image_url"
_NO_PROGRAMS = "only the model itself calls functions"

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputPart(TemplateBody, kw_only=True):
    """A part of the content of a message or of a function's result; chat templates see other fields, too."""

    type: str
    """Which part this is: input_text, input_image or input_audio, or output_text or refusal (of an assistant)."""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    """Accepted, without effect."""
    logprobs: list[Any] | None = None
    """Accepted, without effect."""
    prompt_cache_breakpoint: Any = None
    """Accepted, without effect: every prefix is cached."""
    parsed: Any = None
    """Accepted, without effect: clients put the text there as an object."""
    image_url: str | None = None
    """Of type input_image: the URL of an image, https or data."""
    detail: str | None = None
    """Accepted, without effect: images have the size that the model's image processor gives them."""
    input_audio: Any = None
    """Of type input_audio: an object with a file of sound in base64 as data."""
    file_id: Annotated[Any, Refused(_NO_FILES)] = None
    file_data: Annotated[Any, Refused(_NO_FILES)] = None
    file_url: Annotated[Any, Refused(_NO_FILES)] = None
    filename: Annotated[Any, Refused(_NO_FILES)] = None


class MessageItem(TemplateBody, kw_only=True):
    """A message of the conversation; chat templates see other fields, too."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    """Who says it."""
    content: str | Annotated[list[InputPart], at_most(MOST_PARTS)]
    """What is said."""
    id: str | None = None
    """The id that an earlier response gave it."""
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    """Accepted, without effect."""


class FunctionCallInput(Body, kw_only=True):
    """A call that the model made before."""

    type: Literal["function_call"]
    call_id: NonEmpty
    """What the result names the call by."""
    name: NonEmpty
    arguments: Any = None
    """JSON text; what is none, or not complete, counts as no arguments."""
    id: str | None = None
    status: ItemStatus | None = None
    parsed_arguments: Any = None
    """Accepted, without effect: clients put the arguments there as an object."""
    namespace: str | None = None
    """Where the function was given in a namespace."""
    caller: Annotated[Any, Ignored(_NO_PROGRAMS, ({"type": "direct"},))] = None


class FunctionCallOutput(Body, kw_only=True):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: NonEmpty
    """The call that it answers."""
    output: str | Annotated[list[InputPart], at_most(MOST_PARTS)]
    id: str | None = None
    status: ItemStatus | None = None
    name: str | None = None
    """The function; accepted, without effect."""
    namespace: str | None = None
    """Accepted, without effect."""
    caller: Annotated[Any, Ignored(_NO_PROGRAMS, ({"type": "direct"},))] = None


class CustomCallInput(Body, kw_only=True):
    """A call of a custom tool that the model made before."""

    type: Literal["custom_tool_call"]
    call_id: NonEmpty
    """What the result names the call by."""
    name: NonEmpty
    input: str
    """Text, in whatever form the tool takes it."""
    id: str | None = None
    status: ItemStatus | None = None
    namespace: str | None = None
    """Where the tool was given in a namespace."""
    caller: Annotated[Any, Ignored(_NO_PROGRAMS, ({"type": "direct"},))] = None


class CustomCallOutput(Body, kw_only=True):
    """What a custom tool returned."""

    type: Literal["custom_tool_call_output"]
    call_id: NonEmpty
    """The call that it answers."""
    output: str | list[InputPart]
    id: str | None = None
    status: ItemStatus | None = None
    name: str | None = None
    """The tool; accepted, without effect."""
    caller: Annotated[Any, Ignored(_NO_PROGRAMS, ({"type": "direct"},))] = None


class ReasoningPart(Body, kw_only=True):
    """A text of the model's reasoning, or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningInput(Body, kw_only=True):
    """What the model thought before, for chat templates that show it."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ReasoningPart] | None = None
    """Shown to the model where there is no content."""
    content: list[ReasoningPart] | None = None
    status: ItemStatus | None = None
    encrypted_content: Annotated[Any, Ignored("encrypted reasoning is not supported: send its content")] = None


class ItemReference(Body, kw_only=True):
    """An item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: NonEmpty


Item: TypeAlias = (
    MessageItem | FunctionCallInput | FunctionCallOutput | CustomCallInput | CustomCallOutput | ReasoningInput
)
"""An item that is part of a conversation."""

ITEM_KINDS: dict[str, type[Body]] = {
    "message": MessageItem,
    "function_call": FunctionCallInput,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": CustomCallInput,
    "custom_tool_call_output": CustomCallOutput,
    "reasoning": ReasoningInput,
    "item_reference": ItemReference,
}
"""Items that are understood, by type."""


def kind_of_untyped(item: Mapping[str, Any]) -> str:
    """The type of an item that does not say it."""
    return "message" if "role" in item else "item_reference"


class ResponseTool(Body, kw_only=True):
    """A function that the model may call."""

    # Where tools of chats have it.
    elsewhere: ClassVar[Mapping[str, str]] = {
        "function": 'a tool of a response is {"type": "function", "name": ..., "description": ..., "parameters": ...}'
    }

    type: Literal["function"]
    name: NonEmpty
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The arguments, as JSON Schema."""
    strict: bool | None = None
    """Whether calls must fit the schema."""
    output_schema: dict[str, Any] | None = None
    """Accepted, without effect."""
    defer_loading: Annotated[Any, Ignored("tool search is not supported", (False,))] = None
    allowed_callers: Annotated[Any, Ignored(_NO_PROGRAMS, (["direct"],))] = None


class CustomTool(Body, kw_only=True):
    """A tool that takes text. The model writes it as the one argument, `input`, of a function."""

    type: Literal["custom"]
    name: NonEmpty
    description: str | None = None
    format: dict[str, Any] | None = None
    """Form of the text: {type: text}, or a grammar, which is shown to the model and not enforced."""
    defer_loading: Annotated[Any, Ignored("tool search is not supported", (False,))] = None
    allowed_callers: Annotated[Any, Ignored(_NO_PROGRAMS, (["direct"],))] = None


class NamespaceTool(Body, kw_only=True):
    """Functions and custom tools under one name, which the model sees before theirs."""

    type: Literal["namespace"]
    name: NonEmpty
    description: str | None = None
    """Shown to the model with each of them."""
    tools: list[dict[str, Any]]


TOOL_KINDS: dict[str, type[Body]] = {"function": ResponseTool, "custom": CustomTool, "namespace": NamespaceTool}
"""Tools that are understood, by type."""
