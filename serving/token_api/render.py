"""Requests of all interfaces as token ids and sampling parameters, for `/inference/v1/generate`."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestError
from jaxllm.serving.anthropic.convert import FIELDS, chat_request, read_chat
from jaxllm.serving.anthropic.requests import MessagesRequest
from jaxllm.serving.http.identity import Identity, identify
from jaxllm.serving.http.renaming import renaming
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.openai.chat.call import prepare_chat
from jaxllm.serving.openai.completions.routes import prepare_completions, prompts_of
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.responses import ResponsesRequest
from jaxllm.serving.openai.responses.items import read_input
from jaxllm.serving.openai.responses.prepare import check, prepare, read_turn
from jaxllm.serving.openai.stores import stores_of
from jaxllm.serving.tenancy.access import owner_of
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.token_api.protocol import RenderedRequest

_SAID_ELSEWHERE = (
    "bad_words_token_ids",
    "output_kind",
    "reasoning_end_token_ids",
    "reasoning_closing_token_ids",
    "predicted_token_ids",
    "truncate_prompt_tokens",
)
"""Fields of `SamplingParams` that are made of others, or hold of the prompt as it was."""


async def render_chat(request: Request) -> Response:
    """Make a conversation a request of token ids."""
    server = server_of(request)
    body = await server.bodies.read(request, ChatCompletionRequest)
    identity = identify(request, server, body, "chatcmpl")
    call = await prepare_chat(request, server, body, identity.engine_ids)
    return json_response(_rendered(server, body, identity, call.request))


async def render_message(request: Request) -> Response:
    """Make a conversation of the Messages API a request of token ids."""
    server = server_of(request)
    body = await server.bodies.read(request, MessagesRequest)
    identity = identify(request, server, body, "chatcmpl")
    chat = await server.bodies.work(request, lambda: read_chat(body))
    with renaming(FIELDS, chat.origins, chat.images):
        asked = await server.bodies.work(request, lambda: chat_request(body, chat))
        call = await prepare_chat(request, server, asked, identity.engine_ids, limit="max_tokens")
    return json_response(_rendered(server, asked, identity, call.request))


async def render_response(request: Request) -> Response:
    """Make a conversation of the Responses API a request of token ids; the server does not keep it."""
    server = server_of(request)
    stores = stores_of(request.app)
    body = await server.bodies.read(request, ResponsesRequest)
    identity = identify(request, server, body, "chatcmpl")
    check(body, stores.responses)
    items = await server.bodies.work(request, lambda: read_input(body.input))
    turn = read_turn(body, items, stores.responses, owner_of(request).name)
    call = await prepare(request, server, body, turn, identity.engine_ids)
    return json_response(_rendered(server, body, identity, call.request))


async def render_completion(request: Request) -> Response:
    """Make each prompt a request of token ids."""
    server = server_of(request)
    body = await server.bodies.read(request, CompletionRequest)
    if body.prompt_embeds is not None:
        raise RequestError("prompt_embeds: embeddings have no token IDs", "prompt_embeds")
    if body.echo:
        raise RequestError("echo: not supported, because the response has token IDs without the prompt", "echo")
    prompts = await server.bodies.work(request, lambda: prompts_of(body, RequestLimits.of(server.llm.info)))
    identity = identify(request, server, body, "cmpl", len(prompts))
    requests = await prepare_completions(request, server, body, prompts, identity.engine_ids)
    made = [_rendered(server, body, identity, each, index) for index, each in enumerate(requests)]
    return Response(msgspec.json.encode(made), media_type="application/json")


def _rendered(
    server: ServerState, body: GenerationRequest, identity: Identity, made: TextRequest, index: int | None = None
) -> RenderedRequest:
    """Raises `RequestError` for what parameters alone cannot ask for."""
    if made.params.num_searched:
        raise RequestError("use_beam_search: beam search cannot be rendered", "use_beam_search")
    (child, *_) = made.children
    if child.media is not None:
        raise RequestError("messages: images have no token IDs", "messages")
    return RenderedRequest(
        request_id=identity.id if index is None else f"{identity.id}-{index}",
        token_ids=made.prompt_token_ids,
        sampling_params=_given(server, made),
        model=identity.model,
        stream=bool(body.stream),
        stream_options=body.stream_options if body.stream else None,
        cache_salt=child.cache_salt,
        priority=child.priority,
        return_token_ids=body.return_token_ids,
        reasoning_end_token_ids=made.params.reasoning_end_token_ids,
    )


def _given(server: ServerState, made: TextRequest) -> dict[str, Any]:
    """The parameters that are not what they are by default, and the length in any case: here it has another one."""
    params = made.params
    given: dict[str, Any] = msgspec.to_builtins(params, str_keys=True)
    for name in _SAID_ELSEWHERE:
        given.pop(name, None)
    room = server.limits.max_model_len - len(made.prompt_token_ids)
    given["max_tokens"] = room if params.max_tokens is None else min(room, params.max_tokens)
    if params.min_tokens > given["max_tokens"]:
        given["min_tokens"] = given["max_tokens"]
    return given
