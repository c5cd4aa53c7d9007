"""Scores of two texts, and documents in the order of their scores, as vLLM, Jina and Cohere have them."""

from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer, Body, Refused
from jaxllm.serving.http.body.bounds import MOST_DOCUMENTS, MOST_PARTS, Natural, at_most
from jaxllm.serving.openai.protocol.messages import ContentPart, Contents
from jaxllm.serving.openai.protocol.pooling import PooledRequest, TextUsage

Texts = str | Contents | Annotated[list[str | Contents], at_most(MOST_DOCUMENTS, minItems=1)]


class ScoredRequest(PooledRequest, kw_only=True):
    """Fields that requests for scores share."""

    use_activation: bool | None = None
    """Turn scores into probabilities; default true. Only of a model that reads both texts together."""
    activation: bool | None = None
    """Older name of use_activation."""
    softmax: bool | None = None
    """Older name of use_activation."""
    max_tokens_per_query: Natural | None = None
    """Keep only this many first tokens of a query; 0 or none: all."""
    max_tokens_per_doc: Natural | None = None
    """Keep only this many first tokens of a document; 0 or none: all."""


class ScoreRequest(ScoredRequest, kw_only=True):
    """Pairs of texts to be scored: text_1 and text_2, data_1 and data_2, queries and documents or items."""

    text_1: Texts | None = None
    """A text, which goes with each of text_2, or one text for each of them."""
    text_2: Texts | None = None
    """A text or several."""
    data_1: Texts | None = None
    """Another name of text_1."""
    data_2: Texts | None = None
    """Another name of text_2."""
    queries: Texts | None = None
    """Another name of text_1."""
    documents: Texts | None = None
    """Another name of text_2."""
    items: Texts | None = None
    """Another name of text_2."""


class Score(Answer, kw_only=True):
    """How well two texts fit."""

    object: str = "score"
    index: int
    score: float


class ScoreResponse(Answer, kw_only=True):
    """One score for each of text_2."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Score]
    usage: TextUsage


class DocumentText(Body, kw_only=True):
    """A document as an object."""

    text: str | None = None
    content: Annotated[list[ContentPart], at_most(MOST_PARTS, minItems=1)] | None = None
    """Texts, images and videos, as in the messages of a chat; or else text."""


class RerankRequest(ScoredRequest, kw_only=True):
    """Documents to be put in order by how well they fit a query."""

    query: str | Contents
    documents: DocumentText | Annotated[list[str | DocumentText], at_most(MOST_DOCUMENTS, minItems=1)]
    """Texts, or objects with text or parts; or one such object."""
    top_n: Natural | None = None
    """Most results; 0 or none: all."""
    return_documents: bool | None = None
    """Return the documents' texts too; default true."""
    max_chunks_per_doc: Annotated[Any, Refused("documents are not split into chunks")] = None
    rank_fields: Annotated[Any, Refused("documents have only one field, text", (["text"],))] = None


class RankedDocument(Answer, kw_only=True):
    """The text of a document; of parts, what text they have."""

    text: str


class Ranked(Answer, kw_only=True):
    """One document: `index` is its place in the request."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankUsage(Answer, kw_only=True):
    """Tokens that went in."""

    prompt_tokens: int
    total_tokens: int


class RerankResponse(Answer, kw_only=True):
    """Documents, the best first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[Ranked]
