"""Requests of the Messages API as chat requests, so that both give the same answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxllm.errors import RequestError, nearest, quoted
from jaxllm.serving.anthropic.requests import (
    BLOCK_KINDS,
    CountTokensRequest,
    MessagesImage,
    MessagesMessage,
    MessagesRequest,
    MessagesText,
    MessagesThinking,
    MessagesTool,
    MessagesToolResult,
    MessagesToolUse,
    ThinkingSettings,
)
from jaxllm.serving.http.body.base import UnsupportedError
from jaxllm.serving.http.body.decode import as_body
from jaxllm.serving.openai.generation.parameters import generation_fields
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.messages import CalledFunction, ContentPart, Function, Message, Tool, ToolCall
from jaxllm.serving.openai.protocol.response_format import JsonSchemaFormat, ResponseFormat

FIELDS = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "continue_final_message": "messages",
    "tools.parameters": "input_schema",
}
"""Names of a chat request's fields in this API."""

_BLOCKS = {
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}
_BILLING = "x-anthropic-billing-header"
"""What Claude Code begins a block of the system with, in a line that differs with every request."""
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
_FORMAT_NAME = "output"


@dataclass
class Parts:
    """Parts of a message, and where the images among them were, by their indices."""

    parts: list[ContentPart] = field(default_factory=list)
    images: dict[int, str] = field(default_factory=dict)

    def add(self, block: MessagesText | MessagesImage, place: str) -> None:
        """Add a block that is at this place of the request. Raises `RequestError`."""
        if isinstance(block, MessagesText):
            self.parts.append(_text_part(block))
            return
        self.images[len(self.parts)] = place
        self.parts.append(_image_part(block, f"{place}.source"))


@dataclass(kw_only=True)
class Chat:
    """A conversation as a chat's messages, and for each the field that it was made of."""

    messages: list[Message] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    """Where images were, by their places in the messages."""

    def say(self, role: str, content: "str | list[ContentPart] | Parts", origin: str, **others: Any) -> Message:
        """Add a message."""
        if isinstance(content, Parts):
            here = f"messages[{len(self.messages)}].content"
            self.images.update({f"{here}[{index}]": place for index, place in content.images.items()})
            content = content.parts
        message = Message(role=role, content=content, **others)
        self.messages.append(message)
        self.origins.append(origin)
        return message


def read_chat(body: MessagesRequest | CountTokensRequest) -> Chat:
    """The conversation of a request. Raises `RequestError`."""
    chat = Chat()
    if body.system is not None:
        system = body.system if isinstance(body.system, str) else _system_parts(body.system)
        if system != []:
            chat.say("system", system, "system")
    if not body.messages:
        raise RequestError("messages: the list is empty", "messages")
    for index, message in enumerate(body.messages):
        _add(chat, message, f"messages[{index}]")
    return chat


def _system_parts(blocks: list[dict[str, Any]]) -> list[ContentPart]:
    """The system's texts, without the line for Anthropic's billing, which would keep every prompt from being cached."""
    parts = _text_parts(blocks, "system")
    billed = [part for part in parts if part.text is not None and part.text.startswith(_BILLING)]
    for part in billed:
        assert part.text is not None
        part.text = part.text.partition("\n")[2].lstrip("\n")
    return [part for part in parts if part.text or part not in billed]


def _add(chat: Chat, message: MessagesMessage, origin: str) -> None:
    if isinstance(message.content, str):
        chat.say(message.role, message.content, origin, template_fields=message.template_fields)
        return
    blocks = [
        _block(block, f"{origin}.content[{index}]", _BLOCKS[message.role])
        for index, block in enumerate(message.content)
    ]
    if message.role == "assistant":
        _add_answer(chat, blocks, origin, message.template_fields)
        return
    said = Parts()
    for index, block in enumerate(blocks):
        match block:
            case MessagesText() | MessagesImage():
                said.add(block, f"{origin}.content[{index}]")
            case MessagesToolResult():
                if said.parts:
                    chat.say(message.role, said, origin, template_fields=message.template_fields)
                    said = Parts()
                result = _result(block.content or "", f"{origin}.content[{index}].content")
                chat.say("tool", result, origin, tool_call_id=block.tool_use_id)
    if said.parts or not blocks:
        chat.say(message.role, said, origin, template_fields=message.template_fields)


def _add_answer(chat: Chat, blocks: list[Any], origin: str, template_fields: dict[str, Any] | None) -> None:
    """The assistant's reasoning, text and calls, as one message."""
    texts = [_text_part(block) for block in blocks if isinstance(block, MessagesText)]
    thoughts = [block.thinking for block in blocks if isinstance(block, MessagesThinking)]
    calls = [
        ToolCall(id=block.id, type="function", function=CalledFunction(name=block.name, arguments=block.input))
        for block in blocks
        if isinstance(block, MessagesToolUse)
    ]
    chat.say(
        "assistant",
        texts,
        origin,
        reasoning="\n".join(thoughts) or None,
        tool_calls=calls or None,
        template_fields=template_fields,
    )


def _block(block: Mapping[str, Any], path: str, allowed: tuple[str, ...]) -> Any:
    kind = block.get("type")
    if kind not in allowed:
        expected = " or ".join(map(repr, allowed))
        reason = "documents are not supported" if kind == "document" else f"must be {expected}"
        hint = nearest(kind, BLOCK_KINDS) if isinstance(kind, str) else ""
        raise UnsupportedError(f"{path}.type={quoted(kind)}: {reason}{hint}", f"{path}.type")
    return as_body(block, BLOCK_KINDS[kind], path)


def _result(given: str | list[dict[str, Any]], path: str) -> str | Parts:
    if isinstance(given, str):
        return given
    found = Parts()
    for index, block in enumerate(given):
        place = f"{path}[{index}]"
        found.add(_block(block, place, ("text", "image")), place)
    return found


def _text_parts(given: list[dict[str, Any]], path: str) -> list[ContentPart]:
    blocks = [_block(block, f"{path}[{index}]", ("text",)) for index, block in enumerate(given)]
    return [_text_part(block) for block in blocks]


def _text_part(block: MessagesText) -> ContentPart:
    return ContentPart(type="text", text=block.text, template_fields=block.template_fields)


def _image_part(block: MessagesImage, path: str) -> ContentPart:
    source = block.source
    needed = ("url",) if source.type == "url" else ("media_type", "data")
    for name in needed:
        if getattr(source, name) is None:
            raise RequestError(f"{path}.{name}: this field is required", f"{path}.{name}")
    url = source.url if source.type == "url" else f"data:{source.media_type};base64,{source.data}"
    return ContentPart(type="image_url", image_url=url)


def chat_request(body: MessagesRequest | CountTokensRequest, chat: Chat) -> ChatCompletionRequest:
    """The chat request that answers `body` with this conversation. Raises `RequestError`."""
    output = body.output_config
    schema = output.format.schema if output is not None and output.format is not None else None
    choice, parallel = _tool_choice(body)
    last = body.messages[-1]
    return ChatCompletionRequest(
        **_generation(body),
        messages=chat.messages,
        tools=_tools(body) or None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        reasoning_effort=output.effort if output is not None else None,
        include_reasoning=False if body.thinking is not None and body.thinking.display == "omitted" else None,
        chat_template=body.chat_template,
        chat_template_kwargs=_template_kwargs(body),
        continue_final_message=True if last.role == "assistant" and not chat.messages[-1].tool_calls else None,
        response_format=None
        if schema is None
        else ResponseFormat(
            type="json_schema", json_schema=JsonSchemaFormat(name=_FORMAT_NAME, schema=schema, strict=True)
        ),
    )


def _generation(body: MessagesRequest | CountTokensRequest) -> dict[str, Any]:
    """The fields about the answer, where there is to be one."""
    if isinstance(body, CountTokensRequest):
        _budget(body.thinking, None)
        return {}
    return {
        **generation_fields(body),
        "stop": body.stop_sequences,
        "max_completion_tokens": body.max_tokens,
        "thinking_token_budget": _budget(body.thinking, body.max_tokens),
    }


def _tools(body: MessagesRequest | CountTokensRequest) -> list[Tool]:
    tools = []
    for index, tool in enumerate(body.tools or ()):
        kind = tool.get("type")
        if kind not in (None, "custom"):
            raise UnsupportedError(
                f"tools[{index}].type={quoted(kind)}: only tools of type 'custom' are supported; this server runs no "
                "built-in tools",
                f"tools[{index}].type",
            )
        given = as_body(tool, MessagesTool, f"tools[{index}]")
        function = Function(
            name=given.name, description=given.description, parameters=given.input_schema, strict=given.strict
        )
        tools.append(Tool(type="function", function=function))
    return tools


def _tool_choice(body: MessagesRequest | CountTokensRequest) -> tuple[Any, bool | None]:
    """The choice as chats write it, and whether there may be several calls."""
    choice = body.tool_choice
    if choice is None:
        return None, None
    parallel = None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    if choice.type != "tool":
        if choice.name is not None:
            raise RequestError(f"tool_choice.name: only for type 'tool', not {quoted(choice.type)}", "tool_choice.name")
        return {"any": "required"}.get(choice.type, choice.type), parallel
    if choice.name is None:
        raise RequestError("tool_choice.name: this field is required", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}, parallel


def _budget(thinking: ThinkingSettings | None, max_tokens: int | None) -> int | None:
    if thinking is None or thinking.type != "enabled":
        if thinking is not None and thinking.budget_tokens is not None:
            raise RequestError("thinking.budget_tokens: only for type 'enabled'", "thinking.budget_tokens")
        return None
    if thinking.budget_tokens is None:
        raise RequestError("thinking.budget_tokens: this field is required", "thinking.budget_tokens")
    if thinking.budget_tokens < 1 or (max_tokens is not None and thinking.budget_tokens >= max_tokens):
        raise RequestError(
            f"thinking.budget_tokens={thinking.budget_tokens}: must be at least 1 and less than "
            f"max_tokens={max_tokens}",
            "thinking.budget_tokens",
        )
    return thinking.budget_tokens


def _template_kwargs(body: MessagesRequest | CountTokensRequest) -> dict[str, Any] | None:
    """Chat templates know the switch of thinking under one of two names."""
    if body.thinking is None:
        return body.chat_template_kwargs
    thinks = _THINKS[body.thinking.type]
    return {"enable_thinking": thinks, "thinking": thinks, **(body.chat_template_kwargs or {})}
