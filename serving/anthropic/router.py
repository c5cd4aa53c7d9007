"""The operations of the Messages API."""

import uuid

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.serving.anthropic import answers, requests
from jaxllm.serving.anthropic.answers import TokenCount
from jaxllm.serving.anthropic.convert import FIELDS, chat_request, read_chat
from jaxllm.serving.anthropic.errors import MESSAGES_ERRORS, REQUEST_ID
from jaxllm.serving.anthropic.requests import CountTokensRequest, MessagesRequest
from jaxllm.serving.anthropic.writer import MessageWriter
from jaxllm.serving.http.identity import identify, model_name
from jaxllm.serving.http.operation import Operation
from jaxllm.serving.http.renaming import renaming
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.http.submission import respond
from jaxllm.serving.openai.chat.call import prepare_chat
from jaxllm.serving.openai.chat.prompt import count_tokens


async def create_message(request: Request) -> Response:
    """Answer a conversation, with the model's thinking, text and calls as blocks."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, MessagesRequest)
    identity = identify(request, server, body, "msg")
    chat = await server.bodies.work(request, lambda: read_chat(body))
    with renaming(FIELDS, chat.origins, chat.images):
        asked = await server.bodies.work(request, lambda: chat_request(body, chat))
        call = await prepare_chat(request, server, asked, identity.engine_ids, limit="max_tokens")
    writer = MessageWriter(call, f"msg_{uuid.uuid4().hex}", identity.model)
    response = await respond(
        request, server, [call.request], writer, first=writer.begin(), last=b"", failure=writer.fail
    )
    response.headers[REQUEST_ID] = request.scope["request_id"]
    return response


async def count_message_tokens(request: Request) -> Response:
    """Count the tokens of a conversation, as the model would read it."""
    server = server_of(request)
    body = await server.bodies.read(request, CountTokensRequest)
    model_name(server, body.model)
    chat = await server.bodies.work(request, lambda: read_chat(body))
    with renaming(FIELDS, chat.origins, chat.images):
        asked = await server.bodies.work(request, lambda: chat_request(body, chat))
        count = await count_tokens(request, server, asked)
    response = json_response(TokenCount(input_tokens=count))
    response.headers[REQUEST_ID] = request.scope["request_id"]
    return response


OPERATIONS = (
    Operation(
        path="/v1/messages",
        methods=("POST",),
        handler=create_message,
        tag="Anthropic",
        request=requests.MessagesRequest,
        response=answers.MessagesAnswer,
        stream=answers.MessagesEvent,
        parts=(*requests.BLOCK_KINDS.values(), requests.MessagesTool, *answers.EVENTS),
        runner="generate",
        errors=MESSAGES_ERRORS,
        batch=True,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        methods=("POST",),
        handler=count_message_tokens,
        tag="Anthropic",
        request=requests.CountTokensRequest,
        response=answers.TokenCount,
        errors=MESSAGES_ERRORS,
    ),
)
