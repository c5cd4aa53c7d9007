"""Text to token ids and back."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.serving.http.errors import not_enabled
from jaxllm.serving.http.identity import model_name
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.openai.chat.prompt import Prepared, prepare_media, render_whole
from jaxllm.serving.openai.generation.validation import check_decodable, check_encodable
from jaxllm.serving.openai.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from jaxllm.serving.text.cached_tokenizer import whole_of


async def tokenize(request: Request) -> Response:
    """Turn a prompt or a conversation into token ids."""
    server = server_of(request)
    body = await server.bodies.read(request, TokenizeRequest)
    model_name(server, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give exactly one of prompt and messages", "prompt")
    prepared = await prepare_media(request, server, body)
    run = server.run_text_of(body.chat_template)
    return Response(await run(_tokenized, server, body, prepared), media_type="application/json")


def _tokenized(server: ServerState, body: TokenizeRequest, prepared: Prepared) -> bytes:
    """The body of the response."""
    if body.prompt is None:
        text = render_whole(server, body, prepared)
    else:
        text = body.prompt
        check_encodable(text, "prompt", server.limits, server.tokenizer.length.longest)
    special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    (token_ids,) = server.tokenizer.encode([text], add_special_tokens=special)
    name_of = server.tokenizer.hf.backend_tokenizer.id_to_token
    names = [name_of(token_id) for token_id in token_ids] if body.return_token_strs else None
    longest = server.limits.max_model_len
    return msgspec.json.encode(
        TokenizeResponse(count=len(token_ids), max_model_len=longest, tokens=token_ids, token_strs=names)
    )


async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    server = server_of(request)
    body = await server.bodies.read(request, DetokenizeRequest)
    model_name(server, body.model)
    check_decodable("tokens", len(body.tokens), server.limits)
    return Response(await server.llm.run_text(_detokenized, server, body.tokens), media_type="application/json")


def _detokenized(server: ServerState, tokens: list[int]) -> bytes:
    """The body of the response."""
    size = server.limits.vocab_size
    for place, token_id in enumerate(tokens):
        if not 0 <= token_id < size:
            raise RequestError(
                f"tokens[{place}]={token_id}: token IDs must be between 0 and {size - 1}", f"tokens[{place}]"
            )
    return msgspec.json.encode(DetokenizeResponse(prompt=server.tokenizer.decode(tokens, skip_special_tokens=False)))


async def tokenizer_info(request: Request) -> Response:
    """Tell the tokenizer's settings: its configuration file, its class, and the chat template."""
    server = server_of(request)
    if not server.options.enable_tokenizer_info_endpoint:
        raise not_enabled(request.url.path, "--enable-tokenizer-info-endpoint")
    hf = await server.llm.run_text(whole_of, server.tokenizer)
    settings = {name: _plain(value) for name, value in hf.init_kwargs.items() if not name.endswith("_file")}
    settings["tokenizer_class"] = type(hf).__name__
    template = server.chat_template
    if template:
        settings["chat_template"] = template
    return Response(msgspec.json.encode(settings), media_type="application/json")


def _plain(value: Any) -> Any:
    """A setting as JSON can hold it: added tokens are their text."""
    match value:
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
    return str(value)
