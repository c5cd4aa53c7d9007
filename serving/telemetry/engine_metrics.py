"""Counts what one engine tells and what its requests measure."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TypeVar

import msgspec

from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import NO_WORK, Amounts, StepStats, added
from jaxllm.kv.lifetimes import PageLife
from jaxllm.serving.telemetry.catalogue import (
    EXTERNAL,
    FAILURES,
    LABELLED,
    METRICS,
    OF_ENGINE,
    OFFLOAD,
    TRANSFER,
    new_histograms,
)
from jaxllm.serving.telemetry.histogram import HistogramState
from jaxllm.serving.telemetry.step_times import ShapeState, StepTimes
from jaxllm.serving.text.measurements import UNTIMED, FinishedRequest, Measurements

Number = TypeVar("Number", int, float)

FINISHED_REASONS = ("stop", "length", "repetition", "abort", "error", "timeout")

# What one finished sequence adds to the histograms.
_OF_FINISHED: dict[str, Callable[[FinishedRequest], float | None]] = {
    "e2e_request_latency_seconds": lambda request: request.e2e_seconds,
    "request_queue_time_seconds": lambda request: request.queue_seconds,
    "request_inference_time_seconds": lambda request: request.inference_seconds,
    "request_prefill_time_seconds": lambda request: request.prefill_seconds,
    "request_decode_time_seconds": lambda request: request.decode_seconds,
    "request_time_per_output_token_seconds": lambda request: request.seconds_per_output_token,
    "request_prompt_tokens": lambda request: request.prompt_tokens,
    "request_generation_tokens": lambda request: request.generation_tokens,
    "request_max_num_generation_tokens": lambda request: request.max_generation_tokens,
    "request_params_n": lambda request: request.n,
    "request_prefill_kv_computed_tokens": lambda request: request.prompt_tokens - request.cached_tokens,
}


class Measured(msgspec.Struct):
    """Measurements of an engine's requests so far: by name, counts, and states of histograms."""

    counters: dict[str, int]
    finished: dict[str, int]
    histograms: dict[str, HistogramState]
    steps: ShapeState = {}
    stage_seconds: list[float] = []
    accepted_by_place: list[int] = []
    work: Amounts = NO_WORK


class EngineState(msgspec.Struct):
    """Reports of an engine: its state after the last step, and counts of its steps."""

    stats: StepStats
    measured: Measured
    is_there: bool = True
    memory: int = 0


class EngineMetrics:
    """Numbers of one engine. One thread observes, any other may read.

    Aborted sequences, and those that ended with their engine, are counted in `request_success` and nowhere else: how
    long somebody waited who then left says nothing about the engine.
    """

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.stats = StepStats()
        """The state after the last step."""
        self.is_there = True
        """Whether there is such an engine now: of one that was removed only what was counted is left."""
        counters = (metric.source for metric in METRICS if metric.kind == "counter")
        self.counters = {name: 0 for name in (*counters, *FAILURES, EXTERNAL) if name not in LABELLED}
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.histograms = new_histograms(info.max_model_len)
        self.steps = StepTimes()
        self.stage_seconds: list[float] = []
        """Seconds that each of several stages has worked."""
        self.accepted_by_place: list[int] = []
        """Accepted drafts by their place after a known token."""
        self.memory = 0
        """Bytes of its process, where that is known."""
        self.num_without_engine = 0
        """Requests that wait for it to be started again, which it cannot tell."""
        self.work = NO_WORK
        """Work of each device, where it is counted."""

    def measured(self) -> Measured:
        """Measurements of requests so far, for `add` in another process."""
        return Measured(
            {name: count for name, count in self.counters.items() if name not in OF_ENGINE},
            dict(self.finished),
            {name: histogram.state() for name, histogram in self.histograms.items() if name not in OF_ENGINE},
        )

    def state(self) -> EngineState:
        """The engine's reports, for another process."""
        return EngineState(
            self.stats,
            Measured(
                {name: count for name, count in self.counters.items() if name in OF_ENGINE},
                {},
                {name: histogram.state() for name, histogram in self.histograms.items() if name in OF_ENGINE},
                steps=self.steps.state(),
                stage_seconds=list(self.stage_seconds),
                accepted_by_place=list(self.accepted_by_place),
                work=self.work,
            ),
            self.is_there,
            self.memory,
        )

    def add(self, other: Measured) -> None:
        """Add what another process has measured."""
        for name, count in other.counters.items():
            self.counters[name] += count
        for reason, count in other.finished.items():
            self.finished[reason] += count
        for name, state in other.histograms.items():
            self.histograms[name].add(*state)
        self.steps.add(other.steps)
        self._add_stages(other.stage_seconds)
        self._add_accepted(other.accepted_by_place)
        self.work = added(self.work, other.work)

    def observe(self, stats: StepStats | None, measured: Measurements | None) -> None:
        """Take one message of the engine."""
        if stats is not None:
            self._take_stats(stats)
        if measured is not None:
            counters, histograms = self.counters, self.histograms
            counters["prompt_tokens"] += measured.prompt_tokens
            counters["prompt_tokens_cached"] += measured.cached_tokens
            counters[EXTERNAL] += measured.external_tokens
            counters["generation_tokens"] += measured.generation_tokens
            histograms["time_to_first_token_seconds"].observe_all(measured.first_token_seconds)
            histograms["inter_token_latency_seconds"].observe_all(measured.inter_token_seconds)
            for seconds, trace_id in measured.first_token_traces:
                histograms["time_to_first_token_seconds"].set_exemplar(seconds, trace_id)
            if measured.slowest_token is not None:
                histograms["inter_token_latency_seconds"].set_exemplar(*measured.slowest_token)
            if measured.finished:
                self._take_finished(measured.finished)

    def _take_stats(self, stats: StepStats) -> None:
        before, self.stats = self.stats, stats
        counters, histograms, steps = self.counters, self.histograms, stats.num_steps
        counters["prefix_cache_queries"] += _grown(before.prefix_queries, stats.prefix_queries)
        counters["prefix_cache_hits"] += _grown(before.prefix_hits, stats.prefix_hits)
        counters["num_preemptions"] += _grown(before.num_preemptions, stats.num_preemptions)
        counters["compilations_after_warmup"] += _grown(before.num_compilations, stats.num_compilations)
        if stats.drafts != before.drafts and stats.drafts.num_drafts:
            drafts = stats.drafts.since(before.drafts)
            counters["spec_decode_num_drafts"] += drafts.num_drafts
            counters["spec_decode_num_draft_tokens"] += drafts.num_draft_tokens
            counters["spec_decode_num_accepted_tokens"] += drafts.num_accepted_tokens
            self._add_accepted(drafts.accepted_by_place)
        counters["lora_reads"] += _grown(before.num_lora_reads, stats.num_lora_reads)
        counters["lora_slot_writes"] += _grown(before.num_lora_writes, stats.num_lora_writes)
        counters["kv_events_dropped"] += _grown(before.num_kv_events_dropped, stats.num_kv_events_dropped)
        if stats.offload != before.offload:
            for name, (field, unit) in OFFLOAD.items():
                told, now = getattr(before.offload, field), getattr(stats.offload, field)
                counters[name] += int(_grown(told, now) * unit)
        if stats.transfer != before.transfer:
            for name, (fields, unit) in TRANSFER.items():
                counters[name] += sum(
                    int(_grown(getattr(before.transfer, field), getattr(stats.transfer, field)) * unit)
                    for field in fields
                )
        counters["encoder_cache_queries"] += _grown(before.image_queries, stats.image_queries)
        counters["encoder_cache_hits"] += _grown(before.image_hits, stats.image_hits)
        if stats.stage_seconds:
            told = before.stage_seconds or (0.0,) * len(stats.stage_seconds)
            self._add_stages([_grown(*pair) for pair in zip(told, stats.stage_seconds, strict=True)])
        if stats.preemptions:
            histograms["request_num_preemptions"].observe_all(stats.preemptions)
        if stats.page_lives:
            self._take_lives(stats.page_lives)
        if steps:
            self.work = added(self.work, stats.work)
            # Only the sum is known if a message covers several steps.
            histograms["iteration_tokens_total"].observe((stats.num_tokens + stats.num_last) / steps, steps)
            histograms["step_seconds"].observe(stats.step_seconds / steps, steps)
            histograms["batch_fill"].observe(stats.num_tokens / stats.bucket_tokens, steps)
            self.steps.observe(stats)

    def _take_lives(self, lives: Sequence[PageLife]) -> None:
        histograms = self.histograms
        histograms["kv_block_lifetime_seconds"].observe_all([life.lifetime for life in lives])
        histograms["kv_block_idle_before_evict_seconds"].observe_all([life.idle for life in lives])
        histograms["kv_block_reuse_gap_seconds"].observe_all([gap for life in lives for gap in life.gaps])

    def _add_stages(self, seconds: Sequence[float]) -> None:
        before = self.stage_seconds or [0.0] * len(seconds)
        if seconds:
            self.stage_seconds = [known + more for known, more in zip(before, seconds, strict=True)]

    def _add_accepted(self, by_place: Sequence[int]) -> None:
        self.accepted_by_place = [sum(pair) for pair in zip_longest(self.accepted_by_place, by_place, fillvalue=0)]

    def _take_finished(self, finished: Sequence[FinishedRequest]) -> None:
        for request in finished:
            self.finished[request.reason] += 1
        done = [request for request in finished if request.reason not in UNTIMED]
        for name, value_of in _OF_FINISHED.items():
            values = [value for value in map(value_of, done) if value is not None]
            self.histograms[name].observe_all(values)
        for request in done:
            if request.trace_id:
                self._set_exemplars(request)
        longest = self.info.max_model_len
        self.histograms["request_params_max_tokens"].observe_all(
            [longest - each.prompt_tokens if each.max_tokens is None else each.max_tokens for each in done]
        )

    def _set_exemplars(self, request: FinishedRequest) -> None:
        for name, value_of in _OF_FINISHED.items():
            value = value_of(request) if name.endswith("_seconds") else None
            if value is not None:
                self.histograms[name].set_exemplar(value, request.trace_id)

    def waiting(self) -> dict[str, int]:
        """Requests that wait, by reason."""
        deferred = self.stats.num_deferred
        capacity = self.stats.num_waiting - deferred
        return {"capacity": capacity, "deferred": deferred, "engine_restart": self.num_without_engine}


def _grown(before: Number, now: Number) -> Number:
    """By how much a total has grown; an engine that was started again counts from 0."""
    return now - before if now >= before else now
