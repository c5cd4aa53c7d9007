"""Embeddings, classes, and pooling in general."""

from collections.abc import Sequence

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.pooling.pooled import pool_texts, pooling_info, usage
from jaxllm.serving.openai.pooling.vectors import VectorFormat
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


async def create_embedding(request: Request) -> Response:
    """Make an embedding of each text."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, EmbeddingRequest)
    form = VectorFormat(body)
    params = PoolingParams(
        task="embed",
        dimensions=body.dimensions,
        normalize=body.is_normalized,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
    )
    identity, results = await pool_texts(request, server, body, params, "embd")
    if form.is_binary:
        return form.response(identity, [each.outputs.data for each in results], usage(results))
    data = [Embedding(index=index, embedding=form.json(each.outputs.data)) for index, each in enumerate(results)]
    return json_response(
        EmbeddingResponse(
            id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage(results)
        )
    )


async def create_pooling(request: Request) -> Response:
    """Pool each text, or each of its tokens, as the task says."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, PoolingBody)
    form = VectorFormat(body)
    params = PoolingParams(
        task=body.task,
        dimensions=body.dimensions,
        normalize=body.is_normalized,
        use_activation=body.use_activation,
        activation=body.activation,
        softmax=body.softmax,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
    )
    identity, results = await pool_texts(request, server, body, params, "pool")
    if form.is_binary:
        return form.response(identity, [each.outputs.data for each in results], usage(results))
    data = [Pooled(index=index, data=form.json(each.outputs.data)) for index, each in enumerate(results)]
    return json_response(
        PoolingResponse(id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage(results))
    )


async def create_classification(request: Request) -> Response:
    """Tell the class of each text."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, ClassifyRequest)
    params = PoolingParams(
        task="classify",
        use_activation=body.use_activation,
        activation=body.activation,
        softmax=body.softmax,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
    )
    identity, results = await pool_texts(request, server, body, params, "classify")
    labels = pooling_info(server).labels
    data = [
        Classified(
            index=index,
            label=_label(labels, each.outputs.data),
            probs=each.outputs.data.tolist(),
            num_classes=len(each.outputs.data),
        )
        for index, each in enumerate(results)
    ]
    return json_response(
        ClassifyResponse(
            id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage(results)
        )
    )


def _label(labels: Sequence[str], scores: np.ndarray) -> str:
    """The name of the class with the best score. Those of an adapter that has another number of them have no names."""
    best = int(np.argmax(scores))
    return labels[best] if len(labels) == len(scores) else f"LABEL_{best}"
