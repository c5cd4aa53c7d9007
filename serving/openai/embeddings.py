"""Embeddings, classes, and pooling in general."""

import base64

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.openai.decode import read_body
from jaxllm.serving.openai.generate import json_response
from jaxllm.serving.openai.pooled import pool_texts, pooling_info, usage
from jaxllm.serving.openai.protocol.pooling import (
    Classified,
    ClassifyRequest,
    ClassifyResponse,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    Pooled,
    PoolingBody,
    PoolingResponse,
)
from jaxllm.serving.openai.state import server_of


async def create_embedding(request: Request) -> Response:
    """Make an embedding of each text."""
    server = server_of(request)
    server.check_accepting()
    body = await read_body(request, EmbeddingRequest)
    encoded = _is_base64(body.encoding_format)
    params = PoolingParams(
        task="embed",
        dimensions=body.dimensions,
        normalize=body.normalize,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    identity, results = await pool_texts(request, server, body, params, "embd")
    data = [
        Embedding(index=index, embedding=_base64(each.outputs.data) if encoded else each.outputs.data.tolist())
        for index, each in enumerate(results)
    ]
    return json_response(
        EmbeddingResponse(
            id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage(results)
        )
    )


async def create_pooling(request: Request) -> Response:
    """Pool each text, or each of its tokens, as the task says."""
    server = server_of(request)
    server.check_accepting()
    body = await read_body(request, PoolingBody)
    encoded = _is_base64(body.encoding_format)
    params = PoolingParams(
        task=body.task,
        dimensions=body.dimensions,
        normalize=body.normalize,
        use_activation=body.use_activation,
        activation=body.activation,
        softmax=body.softmax,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    identity, results = await pool_texts(request, server, body, params, "pool")
    data = [
        Pooled(index=index, data=_base64(each.outputs.data) if encoded else each.outputs.data.tolist())
        for index, each in enumerate(results)
    ]
    return json_response(
        PoolingResponse(id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage(results))
    )


async def create_classification(request: Request) -> Response:
    """Tell the class of each text."""
    server = server_of(request)
    server.check_accepting()
    body = await read_body(request, ClassifyRequest)
    params = PoolingParams(
        task="classify",
        use_activation=body.use_activation,
        activation=body.activation,
        softmax=body.softmax,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    identity, results = await pool_texts(request, server, body, params, "classify")
    labels = pooling_info(server).labels
    data = [
        Classified(
            index=index,
            label=labels[int(np.argmax(each.outputs.data))],
            probs=each.outputs.data.tolist(),
            num_classes=len(labels),
        )
        for index, each in enumerate(results)
    ]
    return json_response(
        ClassifyResponse(
            id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage(results)
        )
    )


def _is_base64(encoding_format: str | None) -> bool:
    if encoding_format not in (None, "float", "base64"):
        raise RequestError(f"encoding_format={encoding_format!r}: choose float or base64", "encoding_format")
    return encoding_format == "base64"


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<f4", copy=False).tobytes()).decode()
