"""Scores of two texts, and documents in the order of their scores."""

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.openai.decode import read_body
from jaxllm.serving.openai.generate import Identity, json_response
from jaxllm.serving.openai.pooled import pool, pooling_info, usage
from jaxllm.serving.openai.protocol.pooling import TextUsage
from jaxllm.serving.openai.protocol.scores import (
    DocumentText,
    Ranked,
    RankedDocument,
    RerankRequest,
    RerankResponse,
    RerankUsage,
    Score,
    ScoredRequest,
    ScoreRequest,
    ScoreResponse,
)
from jaxllm.serving.openai.state import ServerState, server_of
from jaxllm.serving.pooling.scoring import Scoring


async def create_score(request: Request) -> Response:
    """Tell how well two texts fit, or each of several pairs."""
    server = server_of(request)
    server.check_accepting()
    body = await read_body(request, ScoreRequest)
    first, second = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    identity, scores, tokens = await _scores(request, server, body, first, second, "score", "text_2")
    data = [Score(index=index, score=score) for index, score in enumerate(scores)]
    return json_response(
        ScoreResponse(id=identity.id, created=identity.created, model=identity.model, data=data, usage=tokens)
    )


async def create_rerank(request: Request) -> Response:
    """Put documents in the order in which they fit a query."""
    server = server_of(request)
    server.check_accepting()
    body = await read_body(request, RerankRequest)
    if not body.documents:
        raise RequestError("documents: the list is empty", "documents")
    if body.top_n is not None and body.top_n < 0:
        raise RequestError(f"top_n={body.top_n}: must be 0 or more", "top_n")
    documents = [each.text if isinstance(each, DocumentText) else each for each in body.documents]
    identity, scores, tokens = await _scores(request, server, body, [body.query], documents, "rerank", "documents")
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [Ranked(index=index, relevance_score=scores[index]) for index in best]
    if body.return_documents is not False:
        for each in results:
            each.document = RankedDocument(text=documents[each.index])
    return json_response(
        RerankResponse(
            id=identity.id, model=identity.model, usage=RerankUsage(total_tokens=tokens.total_tokens), results=results
        )
    )


async def _scores(
    request: Request,
    server: ServerState,
    body: ScoredRequest,
    first: list[str],
    second: list[str],
    prefix: str,
    field: str,
) -> tuple[Identity, list[float], TextUsage]:
    params = PoolingParams(
        use_activation=body.use_activation,
        activation=body.activation,
        softmax=body.softmax,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    scoring = Scoring(pooling_info(server), first, second, params)
    identity, results = await pool(request, server, body, scoring.prompts, scoring.params, prefix=prefix, field=field)
    return identity, [each.outputs.score for each in scoring.scores(results)], usage(results)
