"""Batches, as OpenAI's interface has them."""

from typing import Annotated, Literal

from msgspec import field

from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.body.bounds import FromZero, NonEmpty, documented
from jaxllm.serving.openai.protocol.response_answers import InputTokensDetails, OutputTokensDetails

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class OutputExpiry(Body, kw_only=True):
    """When files of answers are deleted."""

    anchor: Literal["created_at"]
    seconds: FromZero
    """So many seconds after it."""


class BatchRequestBody(Body, kw_only=True):
    """A file of requests to be answered."""

    input_file_id: NonEmpty
    """An uploaded file with a request in each line."""
    endpoint: NonEmpty
    """The path to which all of them go."""
    completion_window: str
    """How long it may run, such as 24h."""
    metadata: dict[str, str] | None = None
    """Up to 16 short texts, which the batch repeats."""
    output_expires_after: OutputExpiry | None = None
    """When its files of answers are deleted; by default as uploaded ones."""


class BatchProblem(Answer, kw_only=True):
    """A problem of the file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchProblems(Answer, kw_only=True):
    """The first problems of the file."""

    object: Literal["list"] = "list"
    data: list[BatchProblem]


class RequestCounts(Answer, kw_only=True):
    """How far a batch is."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchUsage(Answer, kw_only=True):
    """Tokens of all answers."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = field(default_factory=lambda: InputTokensDetails(cached_tokens=0))
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = field(default_factory=lambda: OutputTokensDetails(reasoning_tokens=0))
    total_tokens: int = 0


class Batch(Answer, kw_only=True):
    """A batch; times are in seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    input_file_id: str
    output_file_id: str | None = None
    """Answers of requests that succeeded, once it has ended."""
    error_file_id: str | None = None
    """Answers of the others, once it has ended."""
    completion_window: str
    status: BatchStatus
    errors: BatchProblems | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    usage: BatchUsage = field(default_factory=BatchUsage)
    metadata: dict[str, str] | None = None

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.status in ("validating", "in_progress", "finalizing", "cancelling")


class BatchList(Answer, kw_only=True):
    """Batches, the newest first."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchesQuery(Body, kw_only=True):
    """Query parameters of listing batches."""

    after: str | None = None
    """Only the batches after the one of this id."""
    limit: Annotated[int, documented(minimum=1, maximum=100)] | None = None
    """Most batches to return, from 1 to 100; default 20."""
