"""vLLM's `/generative_scoring`: how likely labels are after texts, as a model that generates sees it."""

from typing import Annotated

from jaxllm.requests.sampling_limits import MAX_LOGPROB_TOKEN_IDS
from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.body.bounds import MOST_DOCUMENTS, Int64, Natural, Positive, Text, at_most, documented
from jaxllm.serving.openai.protocol.usage import Usage


class LabelScoresRequest(Body, kw_only=True):
    """A query, items, and the labels that may stand after both."""

    model: str | None = None
    """One of /v1/models; default: the first."""
    query: str | list[Natural]
    """Text, or token ids."""
    items: Annotated[list[str | list[Natural]], at_most(MOST_DOCUMENTS, minItems=1)]
    """Texts or token IDs: each follows the query, in a separate prompt."""
    label_token_ids: Annotated[list[Natural], at_most(MAX_LOGPROB_TOKEN_IDS), documented(minItems=1)]
    """The tokens that may come next; the score is the probability of the first."""
    apply_softmax: bool | None = None
    """The labels' probabilities are 1 together (default), or those among all tokens (false)."""
    item_first: bool | None = None
    """Items stand before the query; default false."""
    add_special_tokens: bool | None = None
    """Begin a query that is text with the tokenizer's special tokens; default true."""
    cache_salt: Text | None = None
    """Cached prefixes are shared only between requests of the same salt."""
    priority: Int64 | None = None
    """Lower numbers go first, where the server schedules by priority; default 0."""
    request_id: str | None = None
    """Part of the answer's id and of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""


class LabelScore(Answer, kw_only=True):
    """The score of one item."""

    index: int
    object: str = "score"
    score: float


class LabelScores(Answer, kw_only=True):
    """Scores of items, in their order."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[LabelScore]
    usage: Usage
