"""The operations of models that pool."""

from typing import Any

from jaxllm.serving.http.operation import Handler, Operation
from jaxllm.serving.openai.pooling.cohere import create_cohere_embedding
from jaxllm.serving.openai.pooling.embeddings import create_classification, create_embedding, create_pooling
from jaxllm.serving.openai.pooling.scores import create_rerank, create_score
from jaxllm.serving.openai.protocol import cohere, pooling, scores


def _operation(
    path: str, handler: Handler, request: Any, response: Any, name: str = "", tag: str = "Pooling"
) -> Operation:
    return Operation(
        path=path,
        methods=("POST",),
        handler=handler,
        tag=tag,
        request=request,
        response=response,
        runner="pooling",
        batch=True,
        name=name,
    )


OPERATIONS = (
    _operation("/v1/embeddings", create_embedding, pooling.EmbeddingRequest, pooling.EmbeddingResponse, tag="OpenAI"),
    _operation(
        "/v2/embed", create_cohere_embedding, cohere.CohereEmbedRequest, cohere.CohereEmbedResponse, tag="Cohere"
    ),
    _operation("/pooling", create_pooling, pooling.PoolingBody, pooling.PoolingResponse),
    _operation("/classify", create_classification, pooling.ClassifyRequest, pooling.ClassifyResponse),
    _operation("/v1/pooling", create_pooling, pooling.PoolingBody, pooling.PoolingResponse, "create_pooling_v1"),
    _operation("/v1/classify", create_classification, pooling.ClassifyRequest, pooling.ClassifyResponse, "classify_v1"),
    _operation("/score", create_score, scores.ScoreRequest, scores.ScoreResponse),
    _operation("/v1/score", create_score, scores.ScoreRequest, scores.ScoreResponse, "create_score_v1"),
    _operation("/rerank", create_rerank, scores.RerankRequest, scores.RerankResponse),
    _operation("/v1/rerank", create_rerank, scores.RerankRequest, scores.RerankResponse, "create_rerank_v1"),
    _operation("/v2/rerank", create_rerank, scores.RerankRequest, scores.RerankResponse, "create_rerank_v2"),
)
