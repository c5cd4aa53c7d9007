"""Follows the texts in a pooling engine and turns its outputs into results: `OutputProcessor` for pooling models."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jaxllm.errors import RequestError, RequestFaultError, quoted
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.pooling.inputs import PooledText
from jaxllm.serving.pooling.outputs import PoolingOutput, PoolingRequestOutput
from jaxllm.serving.text.measurements import UNTIMED, EndReason, FinishedRequest, Measurements
from jaxllm.serving.text.output_processor import Processed
from jaxllm.serving.text.progress import SequenceProgress
from jaxllm.serving.text.tracing import Interruption, TracedRequest, TracedSequence


class PoolingProcessor:
    """The requests in flight."""

    def __init__(self) -> None:
        self._requests: dict[str, PooledText] = {}
        self._measured = Measurements()

    def __len__(self) -> int:
        """Unfinished requests."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def num_queued_tokens(self) -> int:
        """Tokens of all requests in flight."""
        return sum(len(request.prompt_token_ids) for request in self._requests.values())

    def running(self) -> dict[str, str]:
        """The engine's ids that outputs are expected for, each with the id of the request that it belongs to."""
        return {name: name for name in self._requests}

    def in_flight(self) -> Iterator[SequenceProgress]:
        """The texts; nothing is generated for them."""
        now = time.monotonic()
        for each in self._requests.values():
            yield SequenceProgress(now - each.arrival_time, len(each.prompt_token_ids), 0, 0)

    def add(self, request: PooledText, reader: object = None) -> None:
        """Expect an output of this request from now on. There is nothing that `reader` could have before."""
        self._requests[request.request_id] = request

    def progress(self, request_id: str) -> tuple[int, int]:
        """Nothing comes of a request before its end."""
        return len(self._requests[request_id].children), 0

    def continued(self, request_id: str) -> list[PoolingRequest]:
        """The request, which begins again."""
        return self._requests[request_id].children

    def interrupt(self, request_ids: Iterable[str], engine: int, reason: str) -> None:
        """The engine of this number, which had these requests, has ended: for their traces."""
        now = time.monotonic()
        for request in map(self._requests.__getitem__, request_ids):
            if request.trace is not None:
                request.interruptions.append(Interruption(engine, reason, 0, now))

    def release(self, request_id: str) -> PooledText:
        """A request, for another of these to `adopt`."""
        return self._requests.pop(request_id)

    def adopt(self, followed: PooledText) -> None:
        """Follow a request that another of these has released."""
        self._requests[followed.request_id] = followed

    def process(self, outputs: Iterable[EngineOutput]) -> Processed:
        """Take the outputs of one step, and give `PoolingRequestOutput`s.

        Outputs of unknown requests, which were aborted, are dropped.
        """
        now = time.monotonic()
        found: list[Any] = []
        refused: list[tuple[str, RequestError]] = []
        for output in outputs:
            request = self._requests.pop(output.request_id, None)
            if request is None:
                continue
            if output.refusal is not None:
                kind = RequestFaultError if output.is_fault else RequestError
                refused.append((output.request_id, kind(output.refusal, output.refused_parameter)))
                self._measure(request, "error" if output.is_fault else "abort", now, None)
                continue
            if output.data is None:
                continue
            self._measure(request, "stop", now, output.scheduled_time)
            result = PoolingRequestOutput(
                request.request_id, PoolingOutput(output.data), request.prompt_token_ids, prompt=request.prompt
            )
            found.append(result)
        measured, self._measured = self._measured, Measurements()
        return Processed(found, refused=refused, measurements=measured)

    def abort(self, request_ids: Iterable[str], reason: EndReason = "abort") -> list[str]:
        """Forget these requests; returns the ids of those that still run, to be aborted there."""
        now, known = time.monotonic(), []
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None:
                self._measure(request, reason, now, None)
                known.append(request_id)
        return known

    def end(self, request_ids: Iterable[str]) -> Processed:
        """Forget these requests, which get no result; an error says so."""
        known = self.abort(request_ids)
        refused = [(name, RequestError(f"request {quoted(name)} was aborted")) for name in known]
        return Processed(refused=refused, aborted=known)

    def abort_all(self) -> list[str]:
        """Forget every request, as `abort`."""
        return self.abort(list(self._requests))

    def _measure(self, request: PooledText, reason: str, now: float, scheduled: float | None) -> None:
        tokens, arrival = len(request.prompt_token_ids), request.arrival_time
        if reason not in UNTIMED:
            self._measured.prompt_tokens += tokens
        if request.trace is not None:
            result = None if scheduled is None else now
            request.trace.end(
                TracedRequest(
                    arrival=arrival,
                    tokenized=request.tokenized_time,
                    ended=now,
                    prompt_tokens=tokens,
                    cached_tokens=0,
                    params=request.params,
                    sequences=(TracedSequence(reason, scheduled, result, None, 0),),
                    interruptions=request.interruptions,
                )
            )
        self._measured.finished.append(
            FinishedRequest(
                reason=reason,
                e2e_seconds=now - arrival,
                queue_seconds=None if scheduled is None else scheduled - arrival,
                prefill_seconds=None if scheduled is None else now - scheduled,
                decode_seconds=None,
                prompt_tokens=tokens,
                generation_tokens=0,
                max_tokens=0,
                trace_id="" if request.trace is None else request.trace.trace_id,
            )
        )


class PooledResult:
    """The one result of a request, for whoever waits for it. Comes once; belongs to one event loop."""

    def __init__(self, request: PooledText, on_close: Callable[["PooledResult"], None]) -> None:
        """`on_close` is called with this if nobody waits any more before it has come."""
        self.request = request
        self.on_end: Callable[[PooledResult], None] | None = None
        """Called once, when it has come or never will."""
        self._on_close = on_close
        self._result: asyncio.Future[PoolingRequestOutput] = asyncio.get_running_loop().create_future()

    def put(self, output: PoolingRequestOutput) -> None:
        """It has come."""
        if not self._result.done():
            self._result.set_result(output)
            self._end()

    def fail(self, error: Exception) -> None:
        """It will not come, for this reason."""
        if not self._result.done():
            self._result.set_exception(error)
            # Nobody may be waiting any more.
            self._result.exception()
            self._end()

    async def get(self) -> PoolingRequestOutput:
        """Wait for it. Raises `EngineError` when the engine fails."""
        return await asyncio.shield(self._result)

    def close(self) -> None:
        """Nobody waits any more: a request that is not finished is aborted."""
        if not self._result.done():
            self._result.cancel()
            self._end()
            self._on_close(self)

    @property
    def has_begun(self) -> bool:
        """Nothing comes before the result."""
        return False

    def _end(self) -> None:
        if self.on_end is not None:
            self.on_end(self)
