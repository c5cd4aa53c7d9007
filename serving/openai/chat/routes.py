"""Chat completions: a conversation in, the model's answers out; or several at once, each answered on its own."""

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.serving.http.identity import identify
from jaxllm.serving.http.renaming import renaming
from jaxllm.serving.http.state import server_of
from jaxllm.serving.http.submission import respond, respond_whole
from jaxllm.serving.openai.chat.call import prepare_chat
from jaxllm.serving.openai.chat.writer import ChatWriter
from jaxllm.serving.openai.protocol.chat import ChatCompletion, ChatCompletionRequest
from jaxllm.serving.openai.protocol.chat_batch import BatchChatRequest
from jaxllm.serving.openai.protocol.usage import Usage
from jaxllm.serving.text.outputs import RequestOutput

MOST_CONVERSATIONS = 1024
"""Most conversations of one request."""


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, ChatCompletionRequest)
    identity = identify(request, server, body, "chatcmpl")
    call = await prepare_chat(request, server, body, identity.engine_ids)
    return await respond(request, server, [call.request], ChatWriter(server, body, identity, call))


async def create_chat_batch(request: Request) -> Response:
    """Answer several conversations; choice i is the answer to conversation i.

    This is vLLM's /v1/chat/completions/batch.
    """
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, BatchChatRequest)
    count = len(body.messages)
    most = min(MOST_CONVERSATIONS, server.limits.max_sequences)
    if not 1 <= count <= most:
        raise RequestError(f"messages: {count} conversations; a request may have 1 to {most}", "messages")
    identity = identify(request, server, body, "chatcmpl", count)
    calls, writers = [], []
    for index, name in enumerate(identity.engine_ids):
        single = body.single(index)
        origins = [f"messages[{index}][{place}]" for place in range(len(single.messages))]
        with renaming({"messages": f"messages[{index}]"}, origins):
            call = await prepare_chat(request, server, single, [name])
        calls.append(call)
        writers.append(ChatWriter(server, single, identity, call))
    return await respond_whole(request, server, [call.request for call in calls], partial(_combine, writers))


def _combine(writers: Sequence[ChatWriter], outputs: Sequence[RequestOutput]) -> ChatCompletion:
    """One response from each conversation's writer and result."""
    answers = [writer.whole([output]) for writer, output in zip(writers, outputs, strict=True)]
    choices = [
        msgspec.structs.replace(choice, index=index)
        for index, answer in enumerate(answers)
        for choice in answer.choices
    ]
    usage = Usage.total([answer.usage for answer in answers])
    return msgspec.structs.replace(answers[0], choices=choices, usage=usage, prompt_token_ids=None)
