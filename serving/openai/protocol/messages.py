"""The messages and tools of a chat request."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from jaxllm.serving.http.body.base import Body, Refused, TemplateBody
from jaxllm.serving.http.body.bounds import MOST_CALLS, MOST_PARTS, Text, at_most

_TEXT_ONLY = "this model accepts text only"
_CONTINUE = "to continue the last message, set continue_final_message in the request"


class ContentPart(TemplateBody, kw_only=True):
    """A part of a message's content; fields beyond these are for chat templates that read them."""

    type: str
    """Which part this is: text, image_url, video_url, input_audio or audio_url; of an assistant also refusal or
    thinking; or another that the chat template knows."""
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Any = None
    """Accepted, without effect: every prefix is cached."""
    image_url: Any = None
    """Of type image_url: the URL of an image, https or data, or an object with it as url."""
    video_url: Any = None
    """Of type video_url: the URL of a video, https or data, or an object with it as url."""
    input_audio: Any = None
    """Of type input_audio: an object with a file of sound in base64 as data."""
    audio_url: Any = None
    """Of type audio_url: the URL of a sound, https or data, or an object with it as url."""
    uuid: str | None = None
    """A name for the image, video or sound: a later part may have the uuid alone, with null as its URL."""
    file: Annotated[Any, Refused(_TEXT_ONLY)] = None
    data: Annotated[Any, Refused("embeddings are supported as prompts of /v1/completions only")] = None


class Contents(Body, kw_only=True):
    """What stands for a text: parts, such as images."""

    content: Annotated[list[ContentPart], at_most(MOST_PARTS, minItems=1)]
    """Texts, images and videos, as in the messages of a chat."""


class CalledFunction(TemplateBody, kw_only=True):
    """A function that the model called; chat templates see other fields, too."""

    name: str
    arguments: Any = None
    """The arguments, as JSON text or an object; what is neither, or not complete, counts as none."""


class ToolCall(TemplateBody, kw_only=True):
    """A call of a tool by the model; chat templates see other fields, too."""

    id: str | None = None
    type: str | None = None
    """Always function."""
    index: int | None = None
    function: CalledFunction | None = None
    custom: Annotated[Any, Refused("only functions are supported")] = None


class Message(TemplateBody, kw_only=True):
    """A message of the conversation; fields beyond these are for chat templates that read them."""

    role: Text
    """Who says it: system, developer, user, assistant, tool or function, or another that the chat template knows."""
    content: str | Annotated[list[ContentPart], at_most(MOST_PARTS)] | None = None
    """Content of the message."""
    name: str | None = None
    """Who of several of the same role says it."""
    tool_call_id: str | None = None
    """In a message of a tool: the call that it answers."""
    tool_calls: Annotated[list[ToolCall], at_most(MOST_CALLS)] | None = None
    """In a message of the assistant: its calls."""
    function_call: CalledFunction | None = None
    """In a message of the assistant: its call, in the older form of tool_calls."""
    refusal: str | None = None
    """In a message of the assistant: why it did not answer."""
    reasoning: str | None = None
    """In a message of the assistant: its reasoning, for chat templates that show it."""
    reasoning_content: str | None = None
    """Another name of reasoning."""
    annotations: Any = None
    """Accepted, without effect."""
    audio: Annotated[Any, Refused(_TEXT_ONLY)] = None
    images: Annotated[Any, Refused(_TEXT_ONLY, ([],))] = None
    prefix: Annotated[Any, Refused(_CONTINUE, (False,))] = None
    partial: Annotated[Any, Refused(_CONTINUE, (False,))] = None


class Function(TemplateBody, kw_only=True):
    """A function that the model may call; fields beyond these must be some that the chat template reads."""

    keeps_read: ClassVar[bool] = True
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The arguments, as JSON Schema."""
    strict: bool | None = None


_NESTED = 'a tool of a chat is {"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'


class Tool(Body, kw_only=True):
    """A tool that the model may call."""

    # Where tools of responses and of Anthropic's API have them.
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("name", "description", "parameters", "input_schema"), _NESTED
    )

    type: str = "function"
    function: Function | None = None
    custom: Annotated[Any, Refused("only functions are supported")] = None
