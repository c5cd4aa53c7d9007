"""Scores of two texts, and documents in the order of their scores."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Self

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.http.identity import Identity
from jaxllm.serving.http.renaming import naming_fields
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.openai.generation.validation import check_texts
from jaxllm.serving.openai.pooling.parts import HasContent, sides_of, writer_of
from jaxllm.serving.openai.pooling.pooled import pool, pooling_info, usage
from jaxllm.serving.openai.protocol.messages import Contents
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
    Texts,
)
from jaxllm.serving.pooling.encode import shorten
from jaxllm.serving.pooling.scoring import Scoring, crosses
from jaxllm.serving.pooling.sides import Side

_PAIRS = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
"""vLLM's names for the two texts."""


async def create_score(request: Request) -> Response:
    """Tell how well two texts fit, or each of several pairs."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, ScoreRequest)
    names, pair = _pair(body)
    first, second = (_Listed.of(*each) for each in zip(names, pair, strict=True))
    with naming_fields(text_1=names[0], text_2=names[1]):
        identity, scores, tokens, _ = await _scores(request, server, body, first, second, "score", "text_2")
    data = [Score(index=index, score=score) for index, score in enumerate(scores)]
    return json_response(
        ScoreResponse(id=identity.id, created=identity.created, model=identity.model, data=data, usage=tokens)
    )


async def create_rerank(request: Request) -> Response:
    """Put documents in the order in which they fit a query."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, RerankRequest)
    if not body.documents:
        raise RequestError("documents: the list is empty", "documents")
    if body.top_n is not None and body.top_n < 0:
        raise RequestError(f"top_n={body.top_n}: must be 0 or more", "top_n")
    query, documents = _Listed.of("query", body.query), _documents(body)
    identity, scores, tokens, sides = await _scores(request, server, body, query, documents, "rerank", "documents")
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [Ranked(index=index, relevance_score=scores[index]) for index in best]
    if body.return_documents is not False:
        for each in results:
            side = sides[each.index]
            each.document = RankedDocument(text=side if isinstance(side, str) else side.text)
    return json_response(
        RerankResponse(
            id=identity.id,
            model=identity.model,
            usage=RerankUsage(prompt_tokens=tokens.prompt_tokens, total_tokens=tokens.total_tokens),
            results=results,
        )
    )


class _Listed(NamedTuple):
    """Texts or parts of a request, and how errors name each of them."""

    items: Sequence[str | HasContent]
    names: Sequence[str]

    @classmethod
    def of(cls, name: str, given: Texts) -> Self:
        """Those of a field, which may be one or several."""
        if not isinstance(given, list):
            return cls([given], [name])
        return cls(given, [f"{name}[{place}]" for place in range(len(given))])


def _documents(body: RerankRequest) -> _Listed:
    """The documents. Raises `RequestError` for one that is no text and has no parts, or has both."""
    several = body.documents if isinstance(body.documents, list) else [body.documents]
    found: list[str | HasContent] = []
    for place, each in enumerate(several):
        if not isinstance(each, DocumentText):
            found.append(each)
            continue
        if (each.text is None) == (each.content is None):
            raise RequestError(f"documents[{place}]: give exactly one of text and content", f"documents[{place}]")
        found.append(Contents(content=each.content) if each.content is not None else each.text or "")
    names = [f"documents[{place}]" for place in range(len(found))]
    return _Listed(found, names if isinstance(body.documents, list) else ["documents"])


def _pair(body: ScoreRequest) -> tuple[tuple[str, str], tuple[Texts, Texts]]:
    """The two fields with the texts, and the texts. Raises `RequestError` unless they are one of `_PAIRS`."""
    names = [name for name in dict.fromkeys(itertools.chain(*_PAIRS)) if getattr(body, name) is not None]
    for pair in _PAIRS:
        if set(pair) == set(names):
            return pair, (getattr(body, pair[0]), getattr(body, pair[1]))
    known = ", or ".join(f"{first} and {second}" for first, second in _PAIRS)
    given = ", ".join(names) or "none of them"
    missing = next((name for pair in _PAIRS for name in pair if names and names[0] in pair and name not in names), None)
    raise RequestError(f"give {known}; got {given}", missing or "text_1")


async def _scores(
    request: Request,
    server: ServerState,
    body: ScoredRequest,
    first: _Listed,
    second: _Listed,
    prefix: str,
    field: str,
) -> tuple[Identity, list[float], TextUsage, list[str | Side]]:
    """Who the response is, the scores, the tokens, and the second sides as they were given."""
    params = PoolingParams(
        use_activation=body.use_activation,
        activation=body.activation,
        softmax=body.softmax,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
    )
    check_texts(field, len(second.items), server.limits)
    kwargs, info = (body.mm_processor_kwargs, body.media_io_kwargs), pooling_info(server)
    sides = await sides_of(request, server, first.items, first.names, *kwargs)
    others = await sides_of(request, server, second.items, second.names, *kwargs)
    cut = await _shortened(server, sides, body, "max_tokens_per_query")
    cut_others = await _shortened(server, others, body, "max_tokens_per_doc")
    writer = writer_of(server, judges=crosses(info))
    if writer is None:
        scoring = Scoring(info, cut, cut_others, params)
    else:
        scoring = await server.llm.run_text(Scoring, info, cut, cut_others, params, writer)
    identity, results = await pool(request, server, body, scoring.prompts, scoring.params, prefix=prefix, field=field)
    late = scoring.is_late_interaction
    scores = await server.llm.run_text(scoring.scores, results) if late else scoring.scores(results)
    return identity, [each.outputs.score for each in scores], usage(results), others


async def _shortened(server: ServerState, sides: list[str | Side], body: ScoredRequest, name: str) -> list[str | Side]:
    """The sides, each text up to the end of as many tokens as the field `name` says. Raises `RequestError`."""
    most: int | None = getattr(body, name)
    if most is not None and most < 0:
        raise RequestError(f"{name}={most}: must be 0 or more", name)
    if not most:
        return sides
    if any(isinstance(side, Side) for side in sides):
        raise RequestError(f"{name}: images cannot be cut; omit it", name)
    return [*await server.llm.run_text(shorten, server.tokenizer, [str(side) for side in sides], most)]
