"""`/invocations`, the one route of Amazon SageMaker's containers: a request goes to the operation that its body is for.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.config.engine_info import PoolingInfo
from jaxllm.errors import RequestError
from jaxllm.serving.http.operation import Handler
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.chat.routes import create_chat_completion
from jaxllm.serving.openai.completions.routes import create_completion
from jaxllm.serving.openai.pooling.embeddings import create_classification, create_embedding
from jaxllm.serving.openai.pooling.scores import create_rerank, create_score

_GENERATING: dict[str, Handler] = {"messages": create_chat_completion, "prompt": create_completion}
_POOLING: dict[str, Handler] = {
    "query": create_rerank,
    "queries": create_score,
    "text_1": create_score,
    "data_1": create_score,
    "input": create_embedding,
    "messages": create_embedding,
}
_CLASSIFYING = {**_POOLING, "input": create_classification, "messages": create_classification}


_ABSENT = b"null"


class _Fields(msgspec.Struct):
    """The fields by which bodies are told apart; their values are looked at later."""

    messages: msgspec.Raw = msgspec.Raw(_ABSENT)
    prompt: msgspec.Raw = msgspec.Raw(_ABSENT)
    query: msgspec.Raw = msgspec.Raw(_ABSENT)
    queries: msgspec.Raw = msgspec.Raw(_ABSENT)
    text_1: msgspec.Raw = msgspec.Raw(_ABSENT)
    data_1: msgspec.Raw = msgspec.Raw(_ABSENT)
    input: msgspec.Raw = msgspec.Raw(_ABSENT)


_decoder = msgspec.json.Decoder(_Fields)


async def invoke(request: Request) -> Response:
    """Answer a chat, a completion, an embedding, a score or a ranking, whichever the body asks for."""
    handlers = _handlers(server_of(request).llm.info.pooling)
    try:
        fields = _decoder.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Whichever it is for says what is wrong with it.
        return await next(iter(handlers.values()))(request)
    for name, handler in handlers.items():
        if bytes(getattr(fields, name)) != _ABSENT:
            return await handler(request)
    raise RequestError(f"the body must contain one of {', '.join(handlers)}")


def _handlers(pooling: PoolingInfo | None) -> dict[str, Handler]:
    if pooling is None:
        return _GENERATING
    return _POOLING if "embed" in pooling.tasks else _CLASSIFYING
