"""From requests to results of a pooling model: what embeddings, classes and scores have in common."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request

from jaxllm.config.engine_info import PoolingInfo
from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.serving.http.deadline import deadline_of
from jaxllm.serving.http.identity import ADAPTER, Identity, Named, identify, requested_rank
from jaxllm.serving.http.renaming import naming_fields
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.http.stream import unless_gone
from jaxllm.serving.http.submission import log_requests, owned, trace
from jaxllm.serving.openai.chat.prompt import Prepared, prepare_media, render
from jaxllm.serving.openai.completions.routes import split_prompts
from jaxllm.serving.openai.generation.validation import check_texts, checked_priority
from jaxllm.serving.openai.protocol.pooling import TextsRequest, TextUsage
from jaxllm.serving.openai.protocol.tokenize import TokenizeRequest
from jaxllm.serving.pooling.inputs import GivenPrompt
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.text.messages import IMAGE
from jaxllm.serving.text.prompts import Prompt


class PooledBody(Named, Protocol):
    """A body of a request to a pooling model, of any interface."""

    priority: int | None


async def pool(
    request: Request,
    server: ServerState,
    body: PooledBody,
    prompts: Sequence[GivenPrompt],
    params: PoolingParams,
    *,
    prefix: str,
    field: str,
    add_special_tokens: bool = True,
) -> tuple[Identity, list[PoolingRequestOutput]]:
    """Who the response is, and the results of its texts.

    `prefix` begins its id, and `field` is what errors about a text name. Raises `RequestError`, `QueueFullError` and
    `EngineError`.
    """
    check_texts(field, len(prompts), server.limits)
    identity = identify(request, server, body, prefix, len(prompts))
    with naming_fields(prompt=field):
        requests = await server.llm.prepare_texts(
            prompts,
            params,
            identity.engine_ids,
            priority=checked_priority(body.priority, server.limits),
            add_special_tokens=add_special_tokens,
            lora_request=request.scope.get(ADAPTER),
        )
    if server.options.enable_log_requests:
        log_requests(requests, request.scope["request_id"], server.options.max_log_len)
    trace(request, server, requests)
    deadline = deadline_of(request.scope)
    follow = None if deadline is None else deadline.follow
    with owned(request, server, requests):
        if deadline is not None:
            deadline.check()
        results = server.llm.pool(requests, requested_rank(request), follow)
        return identity, await unless_gone(request.receive, results)


async def pool_texts(
    request: Request, server: ServerState, body: TextsRequest, params: PoolingParams, prefix: str
) -> tuple[Identity, list[PoolingRequestOutput]]:
    """`pool` for a body with input or messages."""
    if (body.input is None) == (body.messages is None):
        raise RequestError("give exactly one of input and messages", "input")
    special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    prompts: list[Any]
    if body.messages is None:
        assert body.input is not None
        with naming_fields(prompt="input"):
            split = partial(split_prompts, body.input, most=server.limits.max_sequences)
            prompts = list(await server.bodies.work(request, split))
    else:
        prompts = [await render_messages(request, body, server)]
    field = "input" if body.messages is None else "messages"
    return await pool(request, server, body, prompts, params, prefix=prefix, field=field, add_special_tokens=special)


async def render_messages(request: Request, body: TextsRequest, server: ServerState) -> Prompt:
    """The text that the chat template makes of the messages, and their images. Raises `RequestError`."""
    assert body.messages is not None
    same = (
        "messages", "continue_final_message", "chat_template", "chat_template_kwargs", "mm_processor_kwargs",
        "media_io_kwargs",
    )  # fmt: skip
    chat = TokenizeRequest(
        add_generation_prompt=bool(body.add_generation_prompt), **{name: getattr(body, name) for name in same}
    )
    with naming_fields(prompt="messages"):
        prepared = await prepare_media(request, server, chat)
        _, text = await server.run_text_of(chat.chat_template)(render, server, chat)
    return with_images(text, prepared)


def with_images(text: str, prepared: Prepared) -> Prompt:
    """A prompt of a text, with its images and videos if there are any."""
    images = prepared.get(IMAGE)
    return {"prompt": text, MEDIA: {IMAGE: list(images)}} if images else text


def usage(results: Sequence[PoolingRequestOutput]) -> TextUsage:
    """Tokens of all texts."""
    total = sum(len(result.prompt_token_ids) for result in results)
    return TextUsage(prompt_tokens=total, total_tokens=total)


def pooling_info(server: ServerState) -> PoolingInfo:
    """How the model pools; routes for others are rejected before."""
    pooling = server.llm.info.pooling
    assert pooling is not None
    return pooling
