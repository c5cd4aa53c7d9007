"""What requests have in place of texts: parts with images and videos, made ready for the engine."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request

from jaxllm.errors import RequestError
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.chat.prompt import media_of, plain_part
from jaxllm.serving.openai.protocol.messages import ContentPart
from jaxllm.serving.pooling.retrieval import retrieval_template
from jaxllm.serving.pooling.sides import JUDGE_TEMPLATE, Render, Side, Writer
from jaxllm.serving.tenancy.access import owner_of
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.media_parts import placed_media
from jaxllm.serving.text.messages import IMAGE


class HasContent(Protocol):
    """An object of a request with parts."""

    content: list[ContentPart]


async def sides_of(
    request: Request,
    server: ServerState,
    given: Sequence["str | HasContent"],
    names: Sequence[str],
    kwargs: Mapping[str, Any] | None,
    io_kwargs: Mapping[str, Any] | None = None,
) -> list[str | Side]:
    """Texts, and parts with what they stand for; parts of text alone are a text. `names` are for errors.

    Each may have as many images as the request of a chat. Raises `RequestError`.
    """
    tasks = [
        asyncio.ensure_future(_side(request, server, each, name, kwargs, io_kwargs))
        for each, name in zip(given, names, strict=True)
        if not isinstance(each, str)
    ]
    try:
        found = iter(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
    return [each if isinstance(each, str) else next(found) for each in given]


async def _side(
    request: Request,
    server: ServerState,
    given: HasContent,
    name: str,
    kwargs: Mapping[str, Any] | None,
    io_kwargs: Mapping[str, Any] | None,
) -> str | Side:
    media = media_of(server)
    parts = [plain_part(f"{name}.content[{place}]", part, media) for place, part in enumerate(given.content)]
    placed = placed_media([given], [name])
    unknown = next((f"{name}.content[{place}]" for place, part in enumerate(parts) if not _is_known(part, media)), None)
    if unknown is not None:
        raise RequestError(f"{unknown}: parts are texts, images and videos", unknown)
    if not placed:
        return "\n".join(part["text"] for part in parts)
    images = await server.media[IMAGE].prepare(placed, owner_of(request).name, kwargs, io_kwargs)
    return Side(parts, images)


def _is_known(part: Mapping[str, Any], media: frozenset[str]) -> bool:
    return part["type"] == "text" or part["type"] in media


def writer_of(server: ServerState, *, judges: bool) -> Writer | None:
    """What writes prompts of sides: as rerankers are asked, as models that search pages were trained, or as messages.

    None for a model of text alone.
    """
    images = getattr(server.llm.inputs, "images", None)
    if images is None:
        return None
    own = JUDGE_TEMPLATE if judges else retrieval_template(images.model)
    if own is None:
        return Writer(renderer(server))
    return Writer(renderer(server, own), ("query", "document"), of_texts=not judges)


def renderer(server: ServerState, template: str | None = None) -> Render:
    """Writes prompts of messages with images: by a template of parts, or by the chat template; for threads."""
    return partial(
        render_chat,
        server.tokenizer,
        chat_template=template or server.llm.chat_template,
        chat_template_content_format="openai" if template else server.options.chat_template_content_format,
        add_generation_prompt=False,
        chat_template_kwargs=None if template else server.options.default_chat_template_kwargs,
        allow_special_tokens=server.options.allow_special_tokens_in_content,
        media=media_of(server),
    )
