"""Examples of bodies for the page about the routes, which sends them."""

from typing import Any, Final

import msgspec

from jaxllm.serving.anthropic.requests import MessagesRequest
from jaxllm.serving.http.body.base import Body, refused_fields
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.responses import ResponsesRequest

_FIELDS: Final = {
    "messages": [{"role": "user", "content": "What is 17 plus 25?"}],
    "prompt": "Once upon a time",
    "input": "Once upon a time",
    "max_tokens": 32,
    "text_1": "A dog",
    "text_2": "A cat",
    "query": "A dog",
    "documents": ["A cat"],
    "texts": ["Once upon a time"],
    "tokens": [5, 6],
}
_SHOWN: Final = frozenset(("prompt", "input", "max_tokens", "text_1", "text_2", "texts"))
"""Fields that examples have although they may be left out."""

_IMAGE, _VIDEO = "https://example.com/cat.png", "https://example.com/cat.mp4"
_WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQIAAAAAAA=="
"""A file of one sample."""


def _asked(text: str, part: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of a part, and of a question about it."""
    kind = "input_text" if part["type"] == "input_image" else "text"
    return [{"role": "user", "content": [part, {"type": kind, "text": text}]}]


_MEDIA: Final[dict[type[Body], dict[str, dict[str, Any]]]] = {
    ChatCompletionRequest: {
        "An image": {"messages": _asked("What is this?", {"type": "image_url", "image_url": {"url": _IMAGE}})},
        "A video": {"messages": _asked("What happens?", {"type": "video_url", "video_url": {"url": _VIDEO}})},
        "A sound": {
            "messages": _asked("What is this?", {"type": "input_audio", "input_audio": {"data": _WAV, "format": "wav"}})
        },
    },
    ResponsesRequest: {"An image": {"input": _asked("What is this?", {"type": "input_image", "image_url": _IMAGE})}},
    MessagesRequest: {
        "An image": {
            "messages": _asked("What is this?", {"type": "image", "source": {"type": "url", "url": _IMAGE}}),
            "max_tokens": 32,
        }
    },
}


def examples_of(kind: type[Body]) -> dict[str, dict[str, Any]]:
    """Bodies of this kind that can be sent, by what they show: one of text first; none for kinds without any."""
    served = [field for field in msgspec.structs.fields(kind) if field.name not in refused_fields(kind)]
    shown = {field.encode_name for field in served if field.required or field.name in _SHOWN}
    example = {name: value for name, value in _FIELDS.items() if name in shown}
    try:
        msgspec.convert(example, kind)
    except msgspec.ValidationError:
        # A field of this name is of another type here.
        return {}
    return {"Text": example, **{name: {**example, **each} for name, each in _MEDIA.get(kind, {}).items()}}
