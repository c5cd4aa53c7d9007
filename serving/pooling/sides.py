"""One of two things to score against each other, or one to embed: a text, or parts with images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxllm.serving.text.prompts import ParsedPrompt

Render = Callable[[list[Mapping[str, Any]]], str]
"""Makes a prompt of messages whose parts are as chat templates see them. It has a marker for each image."""

JUDGE_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a search query, retrieve relevant candidates that answer the query."
    "{%- for message in messages -%}"
    "{{- '<Query>:' if message['role'] == 'query' else '\n<Document>:' -}}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part['type'] == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    "{{- '<|im_end|>\n<|im_start|>assistant\n' -}}"
)
"""`JUDGED_IMAGES` as a chat template, for messages of the roles query and document."""


@dataclass(frozen=True)
class Side:
    """Parts with images or videos: `parts` as chat templates see them, and what the parts without text stand for."""

    parts: Sequence[Mapping[str, Any]]
    images: Sequence[Any]

    @property
    def text(self) -> str:
        """The text of its parts."""
        return "\n".join(str(part["text"]) for part in self.parts if part["type"] == "text")


@dataclass(frozen=True)
class Writer:
    """How prompts of sides are written by a template. With `of_texts`, those of texts alone are, too.

    `roles` are those of the first and of the second side.
    """

    render: Render
    roles: tuple[str, str] = ("user", "user")
    of_texts: bool = False


def rendered(render: Render, sides: Sequence[tuple[str, str | Side]]) -> ParsedPrompt:
    """The prompt of a message for each side, which are given with their roles. Raises `RequestError`."""
    messages: list[Mapping[str, Any]] = [{"role": role, "content": _parts(side)} for role, side in sides]
    images = [image for _, side in sides if isinstance(side, Side) for image in side.images]
    return ParsedPrompt(render(messages), None, None, has_special_tokens=True, images=images)


def _parts(side: str | Side) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": side}] if isinstance(side, str) else list(side.parts)
