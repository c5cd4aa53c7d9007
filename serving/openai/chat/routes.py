"""Chat completions: a conversation in, the model's answers out."""

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.serving.http.generate import identify, respond
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.chat.call import prepare_chat
from jaxllm.serving.openai.chat.writer import ChatWriter
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, ChatCompletionRequest)
    identity = identify(request, server, body, "chatcmpl")
    call = await prepare_chat(request, server, body, identity.engine_ids)
    return await respond(request, server, [call.request], ChatWriter(server, body, identity, call))
