"""The engine's token ids to text and results: per step for streams, at the end for everybody else."""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from jaxllm.errors import RequestError, RequestFaultError, fault_message
from jaxllm.models.errors import is_failure
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.measurements import EndReason, Measurements, Meter
from jaxllm.serving.text.outputs import RequestOutput
from jaxllm.serving.text.progress import SequenceProgress
from jaxllm.serving.text.sequence import RequestState, Sequence, TextReader
from jaxllm.serving.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Processed:
    """The meaning of one step.

    `outputs` are results: deltas of streams, and complete ones of other requests, once. `stopped` are pairs (engine
    request id, stop string): the engine goes on with these until told to finish them. `refused` are pairs (request id,
    error) of requests that the engine does not serve any further; `aborted` the engine's ids of what still runs of
    them. `measurements`, only when asked for, also tell of requests that were aborted since the last step.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    stopped: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, RequestError]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    measurements: Measurements | None = None


@dataclass(frozen=True)
class Followed:
    """A request in flight, and its sequences that run, by the engine's ids."""

    state: RequestState
    sequences: dict[str, Sequence]


class OutputProcessor:
    """Follows the requests in flight and turns `EngineOutput`s into `RequestOutput`s.

    Only streams and requests with stop strings are decoded token by token; others cost one list extension per step,
    and one decoding at their end.
    """

    def __init__(self, tokenizer: Tokenizer | None, measure: bool = False, stream_interval: int = 1) -> None:
        """`stream_interval` is how many tokens a stream brings at a time, at least."""
        self._tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._meter = Meter() if measure else None
        self._sequences: dict[str, Sequence] = {}
        self._requests: dict[str, RequestState] = {}

    def __len__(self) -> int:
        """Unfinished requests."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet. Searches are left out: they bring all at their end."""
        return sum(
            len(each.request.prompt_token_ids)
            for each in self._requests.values()
            if each.metrics.first_token_time is None and not each.request.params.num_searched
        )

    def running(self) -> dict[str, str]:
        """The engine's ids that outputs are expected for, each with the id of the request that it belongs to."""
        return {child: sequence.state.request.request_id for child, sequence in self._sequences.items()}

    def in_flight(self) -> Iterator[SequenceProgress]:
        """How far each sequence has come."""
        now = time.monotonic()
        for sequence in self._sequences.values():
            state = sequence.state
            adapter = state.request.children[sequence.index].lora_request
            yield SequenceProgress(
                age_seconds=now - state.metrics.arrival_time,
                prompt_tokens=len(state.request.prompt_token_ids),
                cached_tokens=state.num_cached_tokens,
                generated_tokens=len(sequence.token_ids),
                adapter=None if adapter is None else adapter.lora_name,
            )

    def add(self, request: TextRequest, reader: TextReader | None = None) -> None:
        """Expect outputs of this request's children from now on.

        What comes in the midst of a stream and is nothing but text is offered to `reader` first.
        """
        assert request.request_id not in self._requests
        state = RequestState(request, reader)
        self._requests[request.request_id] = state
        for index, child in enumerate(request.children):
            self._sequences[child.request_id] = sequence = Sequence(
                state, index, self._tokenizer, self._stream_interval
            )
            if request.reservation is not None:
                request.reservation.outputs.append(sequence.token_ids)
        if self._meter is not None:
            self._meter.add(request)
            for child in request.children:
                self._sequences[child.request_id].times = self._meter.times(child.request_id)

    def progress(self, request_id: str) -> tuple[int, int]:
        """How many sequences of a request run, and how many tokens these have: it differs after any news of it."""
        running = self._running(request_id)
        return len(running), sum(len(sequence.token_ids) for _, sequence in running)

    def continued(self, request_id: str) -> list[Request]:
        """The children of a request that the engine has to go on with, with their output so far."""
        children = []
        for child, sequence in self._running(request_id):
            # The same list, which grows: it is read before anything more comes.
            child.output_token_ids = sequence.token_ids
            children.append(child)
        return children

    def _running(self, request_id: str) -> list[tuple[Request, Sequence]]:
        children, sequences = self._requests[request_id].request.children, self._sequences
        return [(child, sequences[child.request_id]) for child in children if child.request_id in sequences]

    def interrupt(self, request_ids: Iterable[str], engine: int, reason: str) -> None:
        """The engine of this number, which had these requests, has ended: for their traces."""
        now = time.monotonic()
        for request_id in request_ids:
            running = [sequence for _, sequence in self._running(request_id)]
            times = running[0].times if running else None
            if times is not None:
                times.interrupt(engine, reason, sum(len(sequence.token_ids) for sequence in running), now)
            for sequence in running:
                # What comes next tells when the interruption was over.
                sequence.has_fast_path = False

    def release(self, request_id: str) -> Followed:
        """What is known of a request, which goes on, for another of these to `adopt`."""
        sequences = {child.request_id: sequence for child, sequence in self._running(request_id)}
        for name in sequences:
            del self._sequences[name]
            if self._meter is not None:
                self._meter.release(name)
        return Followed(self._requests.pop(request_id), sequences)

    def adopt(self, followed: Followed) -> None:
        """Follow a request that another of these has released."""
        self._requests[followed.state.request.request_id] = followed.state
        self._sequences |= followed.sequences
        for name, sequence in followed.sequences.items():
            if self._meter is not None and sequence.times is not None:
                self._meter.adopt(name, sequence.times)

    def process(self, outputs: Iterable[EngineOutput]) -> Processed:
        """Take the outputs of one step. Outputs of unknown requests (aborted, or stopped already) are dropped."""
        now, meter = time.monotonic(), self._meter
        processed = Processed()
        for output in outputs:
            sequence = self._sequences.get(output.request_id)
            if sequence is None:
                continue
            try:
                if output.drafts is not None:
                    sequence.take_drafts(output.drafts)
                if sequence.has_fast_path and output.finish_reason is None and output.token_ids:
                    if meter is not None and sequence.times is not None:
                        meter.more(sequence.times, len(output.token_ids), now)
                    result = sequence.take_text(output.token_ids)
                    if result is not None:
                        processed.outputs.append(result)
                elif output.refusal is not None:
                    kind = RequestFaultError if output.is_fault else RequestError
                    self._refuse(sequence, kind(output.refusal, output.refused_parameter), output, processed)
                else:
                    self._take(output, sequence, now, processed)
            except BaseException as error:
                if not is_failure(error):
                    raise
                self._fail(sequence, error, output, processed)
        processed.measurements = None if meter is None else meter.read()
        return processed

    def _refuse(self, sequence: Sequence, error: RequestError, output: EngineOutput, processed: Processed) -> None:
        """Forget the request of a sequence, whose reader gets this error."""
        request_id = sequence.state.request.request_id
        processed.refused.append((request_id, error))
        # This one the engine has ended already, if it says so.
        ended = None if output.finish_reason is None else output.request_id
        reason: EndReason = "error" if isinstance(error, RequestFaultError) else "abort"
        processed.aborted += [child for child in self.abort([request_id], reason) if child != ended]

    def _fail(self, sequence: Sequence, error: BaseException, output: EngineOutput, processed: Processed) -> None:
        """What a request has brought cannot be read: it ends, and all others go on."""
        request = sequence.state.request
        logger.error(
            "an internal error ends request %s; all others continue",
            request.request_id,
            exc_info=error,
            extra={"request_id": request.request_id},
        )
        # It may have ended already, as far as its bookkeeping goes.
        self._requests.setdefault(request.request_id, sequence.state)
        self._sequences.setdefault(output.request_id, sequence)
        processed.outputs = [result for result in processed.outputs if result.request_id != request.request_id]
        fault = RequestFaultError(fault_message(request.request_id))
        self._refuse(sequence, fault, output, processed)

    def _take(self, output: EngineOutput, sequence: Sequence, now: float, processed: Processed) -> None:
        """Take any news of a sequence."""
        state, meter = sequence.state, self._meter
        if (output.token_ids or output.sequences) and state.metrics.first_token_time is None:
            state.metrics.first_token_time = now
            state.num_cached_tokens = output.num_cached_tokens
        if output.scheduled_time is not None and state.metrics.scheduled_time is None:
            state.metrics.scheduled_time = output.scheduled_time
        if output.kv_transfer_params is not None:
            state.kv_transfer_params = output.kv_transfer_params
        if output.prompt_logprobs is not None:
            state.take_prompt_logprobs(output.prompt_logprobs, self._tokenizer)
        if meter is not None:
            meter.take(output, now)
        stop = sequence.take(output)
        sequence.has_fast_path = sequence.only_text and state.metrics.first_token_time is not None
        if stop is not None:
            processed.stopped.append((output.request_id, stop))
        if sequence.finish_reason is not None:
            del self._sequences[output.request_id]
            state.unfinished -= 1
            if meter is not None:
                meter.finish(output.request_id, sequence.finish_reason, now)
        result = self._result(sequence, now)
        if result is not None:
            processed.outputs.append(result)

    def _result(self, sequence: Sequence, now: float) -> RequestOutput | None:
        """What is to be told of the request after news of this sequence."""
        state = sequence.state
        finished = state.unfinished == 0
        if finished:
            state.metrics.finished_time = now
            del self._requests[state.request.request_id]
        if state.request.stream:
            completion = sequence.delta()
            return state.result([completion], finished) if completion is not None else None
        if sequence.finish_reason is not None:
            state.completions += sequence.completions()
        return state.result(state.best(), finished) if finished else None

    def abort(self, request_ids: Iterable[str], reason: EndReason = "abort") -> list[str]:
        """Forget these requests; returns the engine's ids of what still runs of them, to be aborted there."""
        children = []
        for request_id in request_ids:
            state = self._requests.pop(request_id, None)
            if state is not None:
                ids = [child.request_id for child in state.request.children]
                children += [child for child in ids if self._sequences.pop(child, None) is not None]
        if self._meter is not None:
            now = time.monotonic()
            for child in children:
                self._meter.finish(child, reason, now)
        return children

    def end(self, request_ids: Iterable[str]) -> Processed:
        """End these requests with what there is of them, with the finish reason "abort"."""
        known = [self._requests[name] for name in request_ids if name in self._requests]
        ids = [child.request_id for state in known for child in state.request.children]
        running = [child for child in ids if child in self._sequences]
        processed = self.process(EngineOutput(child, [], finish_reason="abort") for child in running)
        processed.aborted += running
        return processed

    def abort_all(self) -> list[str]:
        """Forget every request, as `abort`."""
        return self.abort(list(self._requests))
