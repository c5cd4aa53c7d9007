"""Messages of conversations, checked, in the one form that is then fitted to a chat template."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxllm.errors import RequestError, quoted

Message = Mapping[str, Any]
Conversation = Sequence[Message]

TEXT_TYPES = {"text", "input_text", "output_text", "refusal"}
"""Types of parts that are text to every template."""
_MEDIA = ("image", "audio", "video", "file", "input_image", "input_audio", "input_video", "input_file", "image_url")
"""With these, or with what begins like one, the type of a part names something else than text."""


IMAGE, VIDEO, AUDIO = "image", "video", "audio"
"""Media, and the types of parts that stand for them in the messages that chat templates see."""
MEDIA = (IMAGE, VIDEO, AUDIO)


def normalise_messages(messages: Conversation, *, media: Collection[str] = ()) -> list[dict[str, Any]]:
    """Messages whose content is text or a list of parts, and whose calls have objects as arguments.

    The given messages are not changed. Parts whose type is one of `media` stay. Raises `RequestError` that names the
    message.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(f"messages: expected a list of messages, got {type(messages).__name__}", "messages")
    if not messages:
        raise RequestError("messages: the list is empty", "messages")
    return [_normalise(f"messages[{index}]", message, media) for index, message in enumerate(messages)]


def _normalise(where: str, message: Any, media: Collection[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where}: expected an object with role and content, got {type(message).__name__}", "messages"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"{where}: role={quoted(role)} must be a string such as 'system', 'user' or 'assistant'", "messages"
        )
    plain = dict(message)
    plain["content"] = _content(where, message.get("content"), media)
    # Clients send an empty list for none, and templates ask whether there is the field.
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_tool_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    return plain


def _content(where: str, content: Any, media: Collection[str]) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise RequestError(
            f"{where}: content must be text or a list of parts, got {type(content).__name__}", "messages"
        )
    return [_part(where, index, part, media) for index, part in enumerate(content)]


def _part(where: str, index: int, part: Any, media: Collection[str]) -> dict[str, Any]:
    """A part of the content; other types than text are for the template to know."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(kind, str) and kind in media:
        return {"type": kind}
    if not isinstance(part, Mapping) or not isinstance(kind, str) or is_media(kind):
        raise RequestError(f"{where}: content[{index}] is of type {quoted(kind)}; {refusal(media)}", "messages")
    if kind not in TEXT_TYPES:
        return dict(part)
    text = part.get(kind if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise RequestError(f"{where}: content[{index}] is of type {quoted(kind)} and has no text", "messages")
    return {**{name: value for name, value in part.items() if name != "refusal"}, "type": "text", "text": text}


def refusal(media: Collection[str]) -> str:
    """Why a part of another type is refused, of a model that takes these media besides text."""
    return f"this model accepts {' and '.join(['text', *sorted(media)])} only"


def is_media(kind: str) -> bool:
    """Whether a part of this type is an image, sound, a video or a file."""
    return kind.startswith(_MEDIA)


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    """A tool call whose arguments, JSON text in OpenAI's form, are an object."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise RequestError(f"{where}: expected an object with a function", "messages")
    function = call["function"]
    return {**call, "function": {**function, "arguments": arguments_object(function.get("arguments"))}}


def arguments_object(given: Any) -> dict[str, Any]:
    """The arguments of a call that was made before.

    Models write what is no JSON object, and answers end in the middle of one. Such arguments count as none, so that
    the conversation can go on.
    """
    # Some clients encode the text once more.
    for _ in range(2):
        if isinstance(given, str):
            given = _decoded(given)
    return dict(given) if isinstance(given, Mapping) else {}


def _decoded(text: str) -> Any:
    try:
        value = json.loads(text)
        # Half of a surrogate pair, which JSON can write and no prompt can have.
        return json.loads(_encodable(json.dumps(value, ensure_ascii=False))) if "\\u" in text else value
    except (ValueError, RecursionError):
        return None


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
