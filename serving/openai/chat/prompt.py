"""Messages and tools of a request, as chat templates read them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from jaxllm.errors import RequestError
from jaxllm.serving.openai.protocol.messages import ContentPart, Message, Tool

_NEED_CONTENT = {"system", "developer", "user", "tool"}
_WITHOUT_EFFECT = {"annotations", "refusal", "reasoning_content"}
_NAMES_DEVELOPER = "developer"


def conversation(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """The messages as dictionaries that hold only what was given.

    OpenAI's newer models call the system a developer; for a `template` that does not, it becomes the system again.
    Raises `RequestError`.
    """
    developer = _NAMES_DEVELOPER if _NAMES_DEVELOPER in template else "system"
    return [_plain(f"messages[{index}]", message, developer) for index, message in enumerate(messages)]


def _plain(where: str, message: Message, developer: str) -> dict[str, Any]:
    if message.content is None and message.role in _NEED_CONTENT:
        raise RequestError(f"{where}.content: a message of the role {message.role!r} needs content", f"{where}.content")
    plain: dict[str, Any] = msgspec.to_builtins(message)
    for name in _WITHOUT_EFFECT:
        plain.pop(name, None)
    if message.role == _NAMES_DEVELOPER:
        plain["role"] = developer
    if message.reasoning is None and message.reasoning_content is not None:
        plain["reasoning"] = message.reasoning_content
    if "reasoning" in plain:
        # Chat templates know it under either name.
        plain["reasoning_content"] = plain["reasoning"]
    if isinstance(message.content, list):
        plain["content"] = [_part(f"{where}.content[{index}]", part) for index, part in enumerate(message.content)]
    if message.content is None and message.refusal is not None:
        plain["content"] = message.refusal
    for index, call in enumerate(message.tool_calls or ()):
        place = f"{where}.tool_calls[{index}].function"
        if call.function is None:
            raise RequestError(f"{place}: this field is required", place)
    return plain


def _part(where: str, part: ContentPart) -> dict[str, Any]:
    """A part of the content as text. What is not text was refused before, but for its type."""
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in ("text", "refusal"):
        raise RequestError(f"{where}.type={part.type!r}: this model reads text only", f"{where}.type")
    if text is None:
        raise RequestError(f"{where}.{part.type}: this field is required", f"{where}.{part.type}")
    return {"type": "text", "text": text}


def tool_dictionaries(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """The tools as dictionaries. Raises `RequestError` for one without a function."""
    for index, tool in enumerate(tools or ()):
        if tool.function is None:
            raise RequestError(f"tools[{index}].function: this field is required", f"tools[{index}].function")
    plain = [{"type": tool.type, "function": msgspec.to_builtins(tool.function)} for tool in tools or ()]
    return plain or None


def last_content(messages: Sequence[dict[str, Any]], role: str) -> str:
    """Text of the last message, if this role wrote it."""
    last = messages[-1]
    content = last.get("content") if last["role"] == role else None
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""
