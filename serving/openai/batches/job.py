"""One batch: its requests are read from a file, answered like any others, and written to two files."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import msgspec

from jaxllm.errors import JaxLLMError
from jaxllm.serving.openai.batches.admission import Admission
from jaxllm.serving.openai.batches.client import RouteAnswer
from jaxllm.serving.openai.batches.input import BatchInput
from jaxllm.serving.openai.batches.lines import BatchAnswer, BatchError, BatchRequest, BatchResponse
from jaxllm.serving.openai.batches.record import BatchRecord
from jaxllm.serving.openai.files.private import opener
from jaxllm.serving.openai.protocol.batches import Batch, BatchProblem, BatchProblems

Post = Callable[[str, bytes, str], Awaitable[RouteAnswer]]
"""Sends a body to a path under a request's id."""

MOST_PROBLEMS = 100
"""Wrong lines that a batch tells."""


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class TokenUsage(msgspec.Struct):
    """The token counts of answers of all kinds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class AnsweredBody(msgspec.Struct):
    """The token counts of an answer."""

    model: str | None = None
    usage: TokenUsage | None = None


class BatchJob:
    """Answers the requests of a batch that have no answer yet; `batch` always says how far it is.

    What runs when the job is cancelled is dropped, and stays without an answer.
    """

    def __init__(
        self,
        batch: Batch,
        source: Path,
        answers: Path,
        failures: Path,
        *,
        post: Post,
        admission: Admission,
        reserve: Callable[[int], None],
        most_requests: int,
        most_bytes: int,
    ) -> None:
        """Requests come from `source`, and run as `admission` lets them.

        `reserve` is asked before bytes are written to `answers` and `failures`.
        There may be `most_requests`, each of at most `most_bytes`.
        """
        self.batch = batch
        self._source, self._answers, self._failures = source, answers, failures
        self._post, self._admission, self._reserve = post, admission, reserve
        self._most, self._most_bytes = most_requests, most_bytes

    async def run(self, num_workers: int) -> None:
        """Answer all, `num_workers` at a time. Raises `JaxLLMError` when that is not possible."""
        with ExitStack() as stack:
            source = stack.enter_context(BatchInput(str(self._source), (self.batch.endpoint,)))
            problems = await asyncio.to_thread(_problems, source, self._most, self._most_bytes)
            if problems:
                self.batch.errors = BatchProblems(data=problems)
                return
            answers = stack.enter_context(BatchRecord(str(self._answers), source.ids, opener=opener))
            failures = stack.enter_context(BatchRecord(str(self._failures), source.ids, opener=opener))
            done = answers.done | failures.done
            counts = self.batch.request_counts
            counts.total, counts.completed, counts.failed = len(source.ids), len(answers.done), len(failures.done)
            self.batch.status = "in_progress"
            requests = source.requests(done)
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(num_workers, len(source.ids))):
                    workers.create_task(self._work(requests, answers, failures))

    async def _work(self, requests: Iterator[BatchRequest], answers: BatchRecord, failures: BatchRecord) -> None:
        for request in requests:
            answer = await self._answer(request)
            self._write(answer, answers, failures)

    async def _answer(self, request: BatchRequest) -> BatchAnswer:
        """An answer, however long the server is busy, or the owner's quota used up."""
        name = f"{self.batch.id}-{request.custom_id}"[:200].encode("ascii", "replace").decode().replace(" ", "_")
        made = BatchAnswer(f"batch_req_{name}", request.custom_id, None, None)
        try:
            answer = await self._admission.run(lambda: self._post(request.url, bytes(request.body), name))
        except Exception as error:  # noqa: BLE001  (a bug in one route must not end the batch)
            made.error = BatchError("internal_error", f"{type(error).__name__}: {error}")
        else:
            made.response = BatchResponse(answer.status, name, msgspec.Raw(answer.body))
        return made

    def _write(self, answer: BatchAnswer, answers: BatchRecord, failures: BatchRecord) -> None:
        succeeded = answer.response is not None and answer.response.status_code < 400
        self._reserve(len(msgspec.json.encode(answer)) + 1)
        (answers if succeeded else failures).add(answer)
        counts = self.batch.request_counts
        if succeeded:
            counts.completed += 1
            assert answer.response is not None
            _count(self.batch, answer.response.body)
        else:
            counts.failed += 1


def _problems(source: BatchInput, most: int, most_bytes: int) -> list[BatchProblem]:
    """The first wrong lines, or why the file as a whole is wrong. Fills `source.ids`."""
    wrong = [
        BatchProblem(code="invalid_request", message=message, line=number)
        for number, message in islice(source.problems(most, most_bytes), MOST_PROBLEMS)
    ]
    if not wrong and not source.ids:
        return [BatchProblem(code="empty_file", message="the file contains no requests")]
    return wrong


def _count(batch: Batch, body: msgspec.Raw) -> None:
    """Add an answer's tokens, where it tells them."""
    try:
        answered = msgspec.json.decode(body, type=AnsweredBody)
    except msgspec.DecodeError:
        return
    batch.model = batch.model or answered.model
    usage, total = answered.usage, batch.usage
    if usage is None:
        return
    total.input_tokens += usage.prompt_tokens + usage.input_tokens
    total.output_tokens += usage.completion_tokens + usage.output_tokens
    total.total_tokens = total.input_tokens + total.output_tokens
    for details in (usage.prompt_tokens_details, usage.input_tokens_details):
        total.input_tokens_details.cached_tokens += 0 if details is None else details.cached_tokens
    for details in (usage.completion_tokens_details, usage.output_tokens_details):
        total.output_tokens_details.reasoning_tokens += 0 if details is None else details.reasoning_tokens


def is_ours(error: BaseException) -> bool:
    """Whether an error, or all errors of a group, are such as clients are told."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_ours, error.exceptions))
    return isinstance(error, JaxLLMError)
