"""Requests of the Responses API as chat requests, so that both give the same answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http.body.base import Body, UnsupportedError
from jaxllm.serving.http.body.decode import as_body
from jaxllm.serving.openai.generation.parameters import generation_fields
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.messages import CalledFunction, ContentPart, Message, ToolCall
from jaxllm.serving.openai.protocol.response_format import JsonSchemaFormat, ResponseFormat
from jaxllm.serving.openai.protocol.response_items import (
    CustomCallInput,
    CustomCallOutput,
    FunctionCallInput,
    FunctionCallOutput,
    InputPart,
    Item,
    MessageItem,
    ReasoningInput,
)
from jaxllm.serving.openai.protocol.responses import LOGPROBS, ResponsesRequest, TextFormat
from jaxllm.serving.openai.responses.tools import INPUT, CallableTool, callable_tools, shown_name

FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.allowed_tools": "tool_choice",
    "continue_final_message": "input",
}
"""Names here of a chat request's fields."""

_UNFINISHED = ("in_progress", "incomplete")
_PARTS = {
    "system": ("input_text",),
    "developer": ("input_text",),
    "user": ("input_text", "input_image", "input_audio"),
    "assistant": ("output_text", "input_text", "refusal"),
}

_MEDIA = {"input_image": "image_url", "input_audio": "input_audio"}
"""Parts that are no text, and the field that has what they are."""


class NamedFunction(Body, kw_only=True):
    """A tool choice that names a function or a custom tool."""

    type: str
    name: str
    namespace: str | None = None


class AllowedTools(Body, kw_only=True):
    """A tool choice that leaves only some of the tools."""

    type: str
    mode: str
    tools: list[dict[str, Any]]


@dataclass(kw_only=True)
class ItemMessages:
    """A conversation as messages, and for each the field that it was made of."""

    messages: list[Message] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    """Where images were, by their places in the messages."""
    goes_on: bool = False
    """Whether the last message is the assistant's and not complete: the answer goes on with it."""

    def add(self, item: Item, origin: str) -> None:
        """Add an item. What the assistant thought, said and called in a row is one message. Raises `RequestError`."""
        self.goes_on = isinstance(item, MessageItem) and item.role == "assistant" and item.status in _UNFINISHED
        match item:
            case MessageItem(role="assistant"):
                message = self._assistant(origin, said=True)
                message.content = _content(item.content, origin, _PARTS["assistant"])
                message.template_fields = item.template_fields
            case MessageItem():
                content = _content(item.content, origin, _PARTS[item.role])
                message = Message(role=item.role, content=content, template_fields=item.template_fields)
                self._append(message, origin)
            case FunctionCallInput():
                message = self._assistant(origin)
                self._call(message, item.call_id, shown_name(item.name, item.namespace), item.arguments)
            case CustomCallInput():
                message = self._assistant(origin)
                self._call(message, item.call_id, shown_name(item.name, item.namespace), {INPUT: item.input})
            case FunctionCallOutput() | CustomCallOutput():
                output = _content(item.output, origin, ("input_text", "output_text", "input_image"), "output")
                self._append(Message(role="tool", content=output, tool_call_id=item.call_id), origin)
            case ReasoningInput():
                parts = item.content or item.summary or []
                message = self._assistant(origin, thought=True)
                message.reasoning = "\n".join(part.text for part in parts)

    def _call(self, message: Message, call_id: str, name: str, arguments: Any) -> None:
        called = CalledFunction(name=name, arguments=arguments)
        call = ToolCall(id=call_id, type="function", function=called)
        message.tool_calls = [*(message.tool_calls or ()), call]

    def _assistant(self, origin: str, *, said: bool = False, thought: bool = False) -> Message:
        """The assistant's message at the end, or a new one if that has the text or the thought already."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            empty = last.content is None and not last.tool_calls
            if (empty or not said) and not (thought and not (empty and last.reasoning is None)):
                return last
        message = Message(role="assistant")
        self._append(message, origin)
        return message

    def _append(self, message: Message, origin: str) -> None:
        here, there = f"messages[{len(self.messages)}].content", "output" if message.role == "tool" else "content"
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.image_url is not None or part.input_audio is not None:
                self.images[f"{here}[{index}]"] = f"{origin}.{there}[{index}]"
        self.messages.append(message)
        self.origins.append(origin)


def _content(
    content: str | list[InputPart], origin: str, allowed: Sequence[str], name: str = "content"
) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    parts = []
    for index, part in enumerate(content):
        place = f"{origin}.{name}[{index}]"
        if part.type not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise RequestError(f"{place}.type={quoted(part.type)}: expected a part of type {expected}", f"{place}.type")
        if part.type in _MEDIA:
            parts.append(_media_part(part, place, _MEDIA[part.type]))
            continue
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            missing = f"{place}.{'refusal' if part.type == 'refusal' else 'text'}"
            raise RequestError(f"{missing}: this field is required", missing)
        parts.append(ContentPart(type="text", text=text, template_fields=part.template_fields))
    return parts


def _media_part(part: InputPart, place: str, field: str) -> ContentPart:
    given = getattr(part, field)
    if given is None:
        raise RequestError(f"{place}.{field}: this field is required", f"{place}.{field}")
    return ContentPart(type=part.type, **{field: given})


def chat_request(body: ResponsesRequest, chat: ItemMessages) -> ChatCompletionRequest:
    """The chat request that answers `body` with this conversation. Raises `RequestError`."""
    tools = callable_tools(body)
    return ChatCompletionRequest(
        **generation_fields(body),
        messages=chat.messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=LOGPROBS in (body.include or ()) or None,
        top_logprobs=body.top_logprobs,
        tools=[tool.chat_tool() for tool in tools] or None,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        include_reasoning=body.include_reasoning,
        continue_final_message=chat.goes_on or None,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        response_format=_response_format(body.text.format if body.text else None),
        service_tier=body.service_tier,
    )


def _tool_choice(body: ResponsesRequest, known: Sequence[CallableTool]) -> Any:
    """The choice as chats write it."""
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return choice
    match choice.get("type"):
        case "function" | "custom":
            return _chat_function(choice, "tool_choice", known)
        case "allowed_tools":
            given = as_body(choice, AllowedTools, "tool_choice")
            tools = [
                _chat_function(tool, f"tool_choice.tools[{index}]", known) for index, tool in enumerate(given.tools)
            ]
            return {"type": "allowed_tools", "allowed_tools": {"mode": given.mode, "tools": tools}}
    raise UnsupportedError(
        f"tool_choice.type={quoted(choice.get('type'))}: must be 'function', 'custom' or 'allowed_tools'",
        "tool_choice.type",
    )


def _chat_function(named: dict[str, Any], path: str, known: Sequence[CallableTool]) -> dict[str, Any]:
    given = as_body(named, NamedFunction, path)
    shown = shown_name(given.name, given.namespace)
    # One that is given in a namespace may be named without it.
    found = [tool.shown for tool in known if given.name == tool.tool.name]
    return {"type": "function", "function": {"name": shown if shown in found else (found or [shown])[0]}}


def _response_format(given: TextFormat | None) -> ResponseFormat | None:
    """The format as chats write it."""
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return ResponseFormat(type="json_object")
    for name in ("name", "schema"):
        if getattr(given, name) is None:
            raise RequestError(f"text.format.{name}: this field is required", f"text.format.{name}")
    plain: dict[str, Any] = msgspec.to_builtins(given)
    del plain["type"]
    return ResponseFormat(type="json_schema", json_schema=msgspec.convert(plain, JsonSchemaFormat))
