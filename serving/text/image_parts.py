"""The images in the messages of a conversation, told from their texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.text.messages import IMAGE, Conversation, Message

URLS = {"image_url": "image_url", "input_image": "image_url"}
"""Parts whose field of this name has a URL."""
OBJECTS = {"image_pil": "image_pil", "image": "image"}
"""Parts whose field of this name has the image itself."""

Image = TypeVar("Image")


class PlacedImage(NamedTuple):
    """An image in a request: where it stands, its URL, and a name that the client gives it; one of both is there."""

    where: str
    url: str | None
    uuid: str | None = None


def placed_images(messages: Sequence[Any]) -> list[PlacedImage]:
    """The images in messages, in order; messages and parts have attributes.

    Raises `RequestError` for a part of an image with neither a URL nor a uuid.
    """
    found: list[PlacedImage] = []
    for index, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in URLS:
                where = f"messages[{index}].content[{place}]"
                given = getattr(part, URLS[part.type])
                url = None if given is None and part.uuid is not None else url_of(where, given)
                found.append(PlacedImage(where, url, part.uuid))
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
