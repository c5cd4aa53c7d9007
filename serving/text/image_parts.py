"""The images in the messages of a conversation, told from their texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.text.messages import IMAGE, Conversation, Message

URLS = {"image_url": "image_url", "input_image": "image_url"}
"""Parts whose field of this name has a URL."""
OBJECTS = {"image_pil": "image_pil", "image": "image"}
"""Parts whose field of this name has the image itself."""

Image = TypeVar("Image")


def image_urls(messages: Sequence[Any]) -> list[tuple[str, str]]:
    """Where images stand in messages, and their URLs, in order; messages and parts have attributes.

    Raises `RequestError` for a part of an image without a URL.
    """
    found: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in URLS:
                where = f"messages[{index}].content[{place}]"
                found.append((where, url_of(where, getattr(part, URLS[part.type]))))
    return found


def take_images(
    messages: Conversation, load_url: Callable[[str, str], Image], load_object: Callable[[str, Any], Image]
) -> tuple[list[Message], list[Image]]:
    """OpenAI's messages with parts of type `IMAGE` in place of their images, and the images, in order.

    They are loaded by a URL, or from an object; the first argument says where in the messages it stands. Raises
    `RequestError` for a part of an image without one, and whatever loading raises.
    """
    images: list[Image] = []

    def take(where: str, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in URLS:
            images.append(load_url(where, url_of(where, part.get(URLS[kind]))))
        elif kind in OBJECTS:
            given = part.get(OBJECTS[kind])
            if given is None:
                raise RequestError(f"{where}.{OBJECTS[kind]}: this field is required", f"{where}.{OBJECTS[kind]}")
            images.append(load_object(where, given))
        else:
            return part
        return {"type": IMAGE}

    return [_taken(f"messages[{index}]", message, take) for index, message in enumerate(messages)], images


def _taken(where: str, message: Message, take: Callable[[str, Any], Any]) -> Message:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    return {**message, "content": [take(f"{where}.content[{index}]", part) for index, part in enumerate(content)]}


def url_of(where: str, given: Any) -> str:
    """The URL in a part: text, or an object with `url`. Raises `RequestError`."""
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str) or not url:
        raise RequestError(f"{where}.image_url: expected a URL, got {quoted(given)}", f"{where}.image_url")
    return url
