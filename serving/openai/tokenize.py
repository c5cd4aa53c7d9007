"""Text to token ids and back."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.serving.openai.chat_call import template_settings
from jaxllm.serving.openai.decode import read_body
from jaxllm.serving.openai.errors import not_enabled
from jaxllm.serving.openai.generate import json_response
from jaxllm.serving.openai.messages import conversation
from jaxllm.serving.openai.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from jaxllm.serving.openai.state import ServerState, server_of


async def tokenize(request: Request) -> Response:
    """Turn a prompt or a conversation into token ids."""
    server = server_of(request)
    body = await read_body(request, TokenizeRequest)
    server.model_name(body.model)
    text = await _text(body, server)
    special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    (token_ids,) = await server.llm.run_text(lambda: server.tokenizer.encode([text], add_special_tokens=special))
    names = server.tokenizer.hf.convert_ids_to_tokens(token_ids) if body.return_token_strs else None
    longest = server.llm.info.max_model_len
    return json_response(
        TokenizeResponse(count=len(token_ids), max_model_len=longest, tokens=token_ids, token_strs=names)
    )


async def _text(body: TokenizeRequest, server: ServerState) -> str:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", "prompt")
    if body.messages is None:
        assert body.prompt is not None
        return body.prompt
    messages = conversation(body.messages, server.chat_template(body.chat_template))
    return await server.llm.render_chat(messages, **template_settings(body, server))


async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    server = server_of(request)
    body = await read_body(request, DetokenizeRequest)
    server.model_name(body.model)
    size = server.llm.info.vocab_size
    for place, token_id in enumerate(body.tokens):
        if not 0 <= token_id < size:
            raise RequestError(f"tokens[{place}]={token_id}: token ids go from 0 to {size - 1}", f"tokens[{place}]")
    text = await server.llm.run_text(lambda: server.tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response(DetokenizeResponse(prompt=text))


async def tokenizer_info(request: Request) -> Response:
    """Tell the tokenizer's settings: its configuration file, its class, and the chat template."""
    server = server_of(request)
    if not server.options.enable_tokenizer_info_endpoint:
        raise not_enabled(request.url.path, "--enable-tokenizer-info-endpoint")
    hf = server.tokenizer.hf
    settings = {name: _plain(value) for name, value in hf.init_kwargs.items() if not name.endswith("_file")}
    settings["tokenizer_class"] = type(hf).__name__
    template = server.chat_template(None)
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
