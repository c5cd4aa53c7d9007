"""Images, videos and sound in the messages of a conversation, told from their texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.text.messages import AUDIO, IMAGE, VIDEO, Conversation, Message


class _Given(NamedTuple):
    """What a part stands for, and the field that has it."""

    medium: str
    field: str


URLS = {
    "image_url": _Given(IMAGE, "image_url"),
    "input_image": _Given(IMAGE, "image_url"),
    "video_url": _Given(VIDEO, "video_url"),
    "audio_url": _Given(AUDIO, "audio_url"),
    "input_audio": _Given(AUDIO, "input_audio"),
}
"""Types of parts that have a URL, or the file itself. Here alone a type chooses its medium."""
OBJECTS = {
    "image_pil": _Given(IMAGE, "image_pil"),
    "image": _Given(IMAGE, "image"),
    "video": _Given(VIDEO, "video"),
    "audio": _Given(AUDIO, "audio"),
}
"""Types of parts that have an object of Python."""
FIELDS = frozenset(given.field for given in URLS.values())
"""Fields that only parts of these types have."""


class PlacedMedium(NamedTuple):
    """An image, video or sound in a request: where it stands, its URL, and a name that the client gives it.

    One of both is there.
    """

    where: str
    url: str | None
    uuid: str | None = None
    medium: str = IMAGE


class Loaders(NamedTuple):
    """How a medium is loaded: by a URL, or from an object. The first argument says where in the messages it stands."""

    by_url: Callable[[str, str], Any]
    from_object: Callable[[str, Any], Any]


def medium_of(kind: str) -> str | None:
    """What a part of this type stands for; None: it is text, or for the chat template to know."""
    given = URLS.get(kind)
    return None if given is None else given.medium


def placed_media(messages: Sequence[Any], names: Sequence[str] | None = None) -> list[PlacedMedium]:
    """The images and sounds in messages, in order; messages and parts have attributes.

    `names` are those of the messages, by default messages[0] and so on. Raises `RequestError` for a part of one with
    neither a URL nor a uuid.
    """
    found: list[PlacedMedium] = []
    for index, message in enumerate(messages):
        name = f"messages[{index}]" if names is None else names[index]
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in URLS:
                where, given = f"{name}.content[{place}]", URLS[part.type]
                value = getattr(part, given.field)
                url = None if value is None and part.uuid is not None else url_of(where, given.field, value)
                found.append(PlacedMedium(where, url, part.uuid, given.medium))
    return found


def take_media(messages: Conversation, loaders: Mapping[str, Loaders]) -> tuple[list[Message], dict[str, list[Any]]]:
    """OpenAI's messages with parts named by their medium in place of these, and what is loaded of each, in order.

    Parts of other media than those of `loaders` stay. Raises `RequestError` for a part that has nothing to load, and
    whatever loading raises.
    """
    taken: dict[str, list[Any]] = {}

    def take(where: str, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        given = URLS.get(kind) or OBJECTS.get(kind) if isinstance(kind, str) else None
        if given is None or given.medium not in loaders:
            return part
        value = part.get(given.field)
        if kind in URLS:
            found = loaders[given.medium].by_url(where, url_of(where, given.field, value))
        elif value is None:
            raise RequestError(f"{where}.{given.field}: this field is required", f"{where}.{given.field}")
        else:
            found = loaders[given.medium].from_object(where, value)
        taken.setdefault(given.medium, []).append(found)
        return {"type": given.medium}

    return [_taken(f"messages[{index}]", message, take) for index, message in enumerate(messages)], taken


def _taken(where: str, message: Message, take: Callable[[str, Any], Any]) -> Message:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    return {**message, "content": [take(f"{where}.content[{index}]", part) for index, part in enumerate(content)]}


def url_of(where: str, field: str, given: Any) -> str:
    """The URL in a field of a part: text, or an object with `url`; of OpenAI's sound, an object with `data`.

    The latter becomes a data URL. Raises `RequestError`.
    """
    if field == "input_audio":
        return _data_url(f"{where}.{field}", given)
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str) or not url:
        raise RequestError(f"{where}.{field}: expected a URL, got {quoted(given)}", f"{where}.{field}")
    return url


def _data_url(where: str, given: Any) -> str:
    data = given.get("data") if isinstance(given, Mapping) else None
    if not isinstance(data, str) or not data:
        raise RequestError(f"{where}.data: expected a file in base64, got {quoted(data)}", f"{where}.data")
    # What `format` says is not needed: the file itself tells.
    return f"data:audio;base64,{data}"
