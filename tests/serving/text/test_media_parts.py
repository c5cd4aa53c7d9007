"""Parts of messages that stand for images and sound."""

from typing import Any

import pytest

from jaxllm.errors import RequestError
from jaxllm.serving.openai.chat.prompt import conversation
from jaxllm.serving.openai.protocol.messages import ContentPart, Message
from jaxllm.serving.text.media_parts import Loaders, PlacedMedium, placed_media, take_media
from jaxllm.serving.text.messages import AUDIO, IMAGE


def message(**part: Any) -> list[Message]:
    """A message of one part."""
    return [Message(role="user", content=[ContentPart(**part)])]


@pytest.mark.parametrize(
    ("part", "url", "medium"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, "https://a/b.png", IMAGE),
        ({"type": "audio_url", "audio_url": {"url": "https://a/b.mp3"}}, "https://a/b.mp3", AUDIO),
        ({"type": "audio_url", "audio_url": "https://a/b.mp3"}, "https://a/b.mp3", AUDIO),
        ({"type": "audio_url", "uuid": "bell"}, None, AUDIO),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}, "data:audio;base64,AAAA", AUDIO),
    ],
)
def test_places(part: dict[str, Any], url: str | None, medium: str) -> None:
    expected = PlacedMedium("messages[0].content[0]", url, part.get("uuid"), medium)
    assert placed_media(message(**part)) == [expected]
    assert conversation(message(**part), media={medium}) == [{"role": "user", "content": [{"type": medium}]}]


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"type": "audio_url"}, "audio_url"),
        ({"type": "audio_url", "audio_url": {"url": 7}}, "audio_url"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": "AAAA"}, "input_audio.data"),
    ],
)
def test_parts_with_nothing_in_them(part: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError) as told:
        placed_media(message(**part))
    assert told.value.parameter == f"messages[0].content[0].{place}"


@pytest.mark.parametrize(
    ("media", "takes"), [((), "text only"), ((IMAGE,), "text and image only"), ((AUDIO,), "text and audio only")]
)
def test_media_that_a_model_does_not_take(media: tuple[str, ...], takes: str) -> None:
    kind, field = ("image_url", "image_url") if AUDIO in media else ("input_audio", "input_audio")
    with pytest.raises(RequestError, match=rf"content\[0\].type='{kind}': this model accepts {takes}"):
        conversation(message(type=kind, **{field: {"url": "data:,", "data": "AAAA"}}), media=media)


def test_a_field_of_another_type_of_part() -> None:
    with pytest.raises(RequestError, match="only parts of type audio_url have one"):
        conversation(message(type="text", text="a", audio_url="data:,"), media={AUDIO})


def test_what_is_loaded() -> None:
    given = [{"role": "user", "content": [{"type": "audio", "audio": 1}, "b", {"type": "image", "image": 2}]}]
    messages, taken = take_media(given, {AUDIO: Loaders(lambda where, url: url, lambda where, value: (where, value))})
    assert taken == {AUDIO: [("messages[0].content[0]", 1)]}
    assert messages == [{"role": "user", "content": [{"type": "audio"}, "b", {"type": "image", "image": 2}]}]
