"""The operations of token ids."""

from jaxllm.serving.anthropic.errors import MESSAGES_ERRORS
from jaxllm.serving.anthropic.requests import MessagesRequest
from jaxllm.serving.http.operation import Operation
from jaxllm.serving.openai.protocol.chat import ChatCompletion, ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import Completion, CompletionRequest
from jaxllm.serving.openai.protocol.responses import ResponsesRequest
from jaxllm.serving.token_api import derender, protocol, render
from jaxllm.serving.token_api.generate import generate_tokens

OPERATIONS = (
    Operation(
        path="/inference/v1/generate",
        methods=("POST",),
        handler=generate_tokens,
        tag="Tokens",
        request=protocol.TokensRequest,
        response=protocol.TokensAnswer,
        stream=protocol.TokensChunk,
        runner="generate",
    ),
    Operation(
        path="/v1/chat/completions/render",
        methods=("POST",),
        handler=render.render_chat,
        tag="Tokens",
        request=ChatCompletionRequest,
        response=protocol.RenderedRequest,
        runner="generate",
    ),
    Operation(
        path="/v1/completions/render",
        methods=("POST",),
        handler=render.render_completion,
        tag="Tokens",
        request=CompletionRequest,
        response=list[protocol.RenderedRequest],
        runner="generate",
    ),
    Operation(
        path="/v1/responses/render",
        methods=("POST",),
        handler=render.render_response,
        tag="Tokens",
        request=ResponsesRequest,
        response=protocol.RenderedRequest,
        runner="generate",
    ),
    Operation(
        path="/v1/messages/render",
        methods=("POST",),
        handler=render.render_message,
        tag="Tokens",
        request=MessagesRequest,
        response=protocol.RenderedRequest,
        errors=MESSAGES_ERRORS,
        runner="generate",
    ),
    Operation(
        path="/v1/chat/completions/derender",
        methods=("POST",),
        handler=derender.derender_chat,
        tag="Tokens",
        request=protocol.DerenderChatRequest,
        response=ChatCompletion,
        runner="generate",
    ),
    Operation(
        path="/v1/completions/derender",
        methods=("POST",),
        handler=derender.derender_completion,
        tag="Tokens",
        request=protocol.DerenderCompletionRequest,
        response=Completion,
        runner="generate",
    ),
)
