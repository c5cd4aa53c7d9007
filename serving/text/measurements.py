"""Measurements of requests on their way: lists per message of the engine, so that metrics cost little per token."""

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, get_args

from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.tracing import Interruption, RequestTrace, TracedRequest, TracedSequence

EndReason: TypeAlias = Literal["abort", "error", "timeout"]
"""Why a sequence ended that is not there to its end: its client left, its engine ended, or its time was over."""
UNTIMED: Final = frozenset(get_args(EndReason))
"""End reasons of sequences whose times and lengths say nothing about the engine."""


@dataclass(slots=True)
class FinishedRequest:
    """A sequence that ended, and how long it took, in seconds. A request with n=2 ends twice, as in vLLM.

    `queue_seconds` last from arrival until it is first scheduled, `prefill_seconds` from there to its first token,
    `decode_seconds` from the first token to the last, `e2e_seconds` from arrival to the end; None: it did not come
    that far. `generation_tokens` counts what the engine generated, also after a stop string. `n` and
    `max_generation_tokens` (of its longest sequence) belong to the whole request: they come with the last of its
    sequences, and are None with the others. `cached_tokens` of the prompt were in the prefix cache. `trace_id` is empty
    unless a collector gets the trace.
    """

    reason: str
    e2e_seconds: float
    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    prompt_tokens: int
    generation_tokens: int
    max_tokens: int | None
    n: int | None = None
    max_generation_tokens: int | None = None
    cached_tokens: int = 0
    trace_id: str = ""

    @property
    def inference_seconds(self) -> float | None:
        """Time from being first scheduled to the last token."""
        if self.prefill_seconds is None or self.decode_seconds is None:
            return None
        return self.prefill_seconds + self.decode_seconds

    @property
    def seconds_per_output_token(self) -> float | None:
        """Mean time between tokens; None with fewer than two."""
        if self.decode_seconds is None or self.generation_tokens < 2:
            return None
        return self.decode_seconds / (self.generation_tokens - 1)


@dataclass(slots=True)
class Measurements:
    """The results of one message of the engine.

    `prompt_tokens` counts those of the sequences whose first token came: `cached_tokens` of them were in the prefix
    cache, and `external_tokens` of these came from another engine. `generation_tokens` counts tokens that came.
    `first_token_seconds` has the times of first tokens since arrival, `inter_token_seconds` one entry for each further
    token: its sequence's entries add up to the time from first to last token.

    `first_token_traces` are the first of these that were traced, each with the id of its trace. Of further tokens that
    were traced, `slowest_token` has the one that took longest: exemplars of all would cost more than their times.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    inter_token_seconds: list[float] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)
    cached_tokens: int = 0
    external_tokens: int = 0
    first_token_traces: list[tuple[float, str]] = field(default_factory=list)
    slowest_token: tuple[float, str] | None = None

    def note_token(self, seconds: float, trace: RequestTrace) -> None:
        """A further token of a traced sequence took so long."""
        if self.slowest_token is None or seconds > self.slowest_token[0]:
            self.slowest_token = seconds, trace.trace_id


class Meter:
    """Measures requests from when they are added until all their sequences have ended."""

    def __init__(self) -> None:
        self._sequences: dict[str, SequenceTimes] = {}
        self._measured = Measurements()

    def times(self, request_id: str) -> "SequenceTimes":
        """Facts about a sequence: for `more`."""
        return self._sequences[request_id]

    def add(self, request: TextRequest) -> None:
        """Expect outputs of this request's children."""
        shared = _Request(request)
        for child in request.children:
            self._sequences[child.request_id] = SequenceTimes(shared)

    def release(self, request_id: str) -> None:
        """A sequence is another one's to measure from now on."""
        del self._sequences[request_id]

    def adopt(self, request_id: str, times: "SequenceTimes") -> None:
        """Go on measuring a sequence that another one has released."""
        self._sequences[request_id] = times

    def take(self, output: EngineOutput, now: float) -> None:
        """Measure an output that arrived `now`."""
        sequence, measured = self._sequences[output.request_id], self._measured
        if output.scheduled_time is not None:
            sequence.scheduled = output.scheduled_time
        if sequence.request.interruptions:
            sequence.request.end_interruption(now)
        if output.sequences is not None:
            # All come at once: there is no time between them.
            sequence.num_tokens = sum(len(each.token_ids) for each in output.sequences)
            measured.generation_tokens += sequence.num_tokens
            self._take_prompt(sequence, output)
        count = len(output.token_ids)
        if count and sequence.first is None:
            sequence.first = sequence.last = now
            sequence.num_tokens += 1
            measured.generation_tokens += 1
            self._take_prompt(sequence, output)
            seconds, trace = now - sequence.request.arrival, sequence.request.trace
            measured.first_token_seconds.append(seconds)
            if sequence.request.progress.first_token_seconds is None:
                sequence.request.progress.first_token_seconds = seconds
            if trace is not None:
                measured.first_token_traces.append((seconds, trace.trace_id))
            count -= 1
        self.more(sequence, count, now)

    def _take_prompt(self, sequence: "SequenceTimes", output: EngineOutput) -> None:
        sequence.cached = output.num_cached_tokens
        self._measured.prompt_tokens += sequence.request.prompt_tokens
        self._measured.cached_tokens += sequence.cached
        self._measured.external_tokens += output.num_external_tokens

    def more(self, sequence: "SequenceTimes", count: int, now: float) -> None:
        """Measure `count` tokens after the first, which arrived `now`: they share the time since the one before."""
        if not count:
            return
        measured = self._measured
        measured.generation_tokens += count
        sequence.num_tokens += count
        seconds = (now - sequence.last) / count
        if count == 1:
            measured.inter_token_seconds.append(seconds)
        else:
            measured.inter_token_seconds += [seconds] * count
        if sequence.request.trace is not None:
            measured.note_token(seconds, sequence.request.trace)
        sequence.last = now

    def finish(self, request_id: str, reason: str, now: float) -> None:
        """A sequence has ended. Nothing, if that is known already."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._measured.finished.append(sequence.finished(reason, now))

    def read(self) -> Measurements:
        """Measurements since the last call."""
        measured, self._measured = self._measured, Measurements()
        return measured


class _Request:
    """Shared by the sequences of a request."""

    __slots__ = (
        *("arrival", "interruptions", "longest", "max_tokens", "n", "params", "progress", "prompt_tokens", "tokenized"),
        *("trace", "traced", "unfinished"),
    )

    def __init__(self, request: TextRequest) -> None:
        self.arrival = request.arrival_time
        self.prompt_tokens = len(request.prompt_token_ids)
        self.n = request.params.n
        self.max_tokens = request.params.max_tokens
        self.unfinished = len(request.children)
        self.longest = 0
        self.progress = request.progress
        self.params = request.params
        self.tokenized = request.tokenized_time
        self.trace = request.trace
        self.traced: list[TracedSequence] = []
        self.interruptions: list[Interruption] = []

    def end_interruption(self, now: float) -> None:
        """There is news of one of its sequences."""
        last = self.interruptions[-1]
        if last.ended is None:
            last.ended = now

    def end_trace(self, now: float, cached: int) -> None:
        """All its sequences have ended: tell the trace."""
        assert self.trace is not None
        self.trace.end(
            TracedRequest(
                arrival=self.arrival,
                tokenized=self.tokenized,
                ended=now,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=cached,
                params=self.params,
                sequences=tuple(self.traced),
                interruptions=self.interruptions,
            )
        )


class SequenceTimes:
    """When things happened to a sequence, in seconds of the monotonic clock; `last` is its last token so far."""

    __slots__ = ("cached", "first", "last", "num_tokens", "request", "scheduled")

    def __init__(self, request: _Request) -> None:
        self.request = request
        self.scheduled: float | None = None
        self.first: float | None = None
        self.last = 0.0
        self.num_tokens = 0
        self.cached = 0

    def finished(self, reason: str, now: float) -> FinishedRequest:
        """All that was measured, of a sequence that ends `now`."""
        request, scheduled, first = self.request, self.scheduled, self.first
        request.unfinished -= 1
        request.longest = max(request.longest, self.num_tokens)
        whole = request.unfinished == 0
        self._note(reason)
        if request.trace is not None:
            last = None if first is None else self.last
            request.traced.append(TracedSequence(reason, scheduled, first, last, self.num_tokens))
            if whole:
                request.end_trace(now, self.cached)
        return FinishedRequest(
            reason=reason,
            e2e_seconds=now - request.arrival,
            queue_seconds=None if scheduled is None else scheduled - request.arrival,
            prefill_seconds=None if scheduled is None or first is None else first - scheduled,
            decode_seconds=None if first is None else self.last - first,
            prompt_tokens=request.prompt_tokens,
            generation_tokens=self.num_tokens,
            max_tokens=request.max_tokens,
            n=request.n if whole else None,
            max_generation_tokens=request.longest if whole else None,
            cached_tokens=self.cached,
            trace_id="" if request.trace is None else request.trace.trace_id,
        )

    def interrupt(self, engine: int, reason: str, num_tokens: int, now: float) -> None:
        """The engine that had the request ended; `num_tokens` are those of all its sequences that run."""
        if self.request.trace is not None:
            self.request.interruptions.append(Interruption(engine, reason, num_tokens, now))

    def _note(self, reason: str) -> None:
        """Add this sequence to what is known of its request."""
        progress = self.request.progress
        progress.num_tokens += self.num_tokens
        progress.finish_reasons.append(reason)


class Observer(Protocol):
    """Sees every message of every engine, on the event loop."""

    def observe(self, stats: StepStats | None, measured: Measurements | None, engine: int = 0) -> None:
        """Take the state after a step of an engine, and what was measured of the requests in it."""
