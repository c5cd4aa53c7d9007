"""Prometheus metrics under vLLM's names and meanings, so that dashboards and autoscalers made for it go on working."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from jaxllm.engine.stats import StepStats
from jaxllm.info import EngineInfo
from jaxllm.serving.telemetry.histogram import Histogram
from jaxllm.serving.telemetry.http import HttpMeasured, HttpMetrics
from jaxllm.serving.text.measurements import FinishedRequest, Measurements

FINISHED_REASONS = ("stop", "length", "abort")
ENGINE = "0"
"""Value of the label `engine`: there is one."""


@dataclass(frozen=True)
class Described:
    """A metric as it is exposed, but for the prefix of its name; counters get `_total` appended."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    key: str = ""
    """Under which its value is kept, when that is not its name: old names share the value of the new one."""

    @property
    def source(self) -> str:
        """Name of the value it shows."""
        return self.key or self.name


METRICS = (
    Described("num_requests_running", "gauge", "Requests that hold a place in the batch."),
    Described("num_requests_waiting", "gauge", "Requests that wait for one."),
    Described(
        "num_requests_waiting_by_reason",
        "gauge",
        "Those that wait, by reason: capacity, or deferred, until their grammar is compiled.",
    ),
    Described("kv_cache_usage_perc", "gauge", "Share of the KV cache that running requests hold, 0 to 1."),
    Described("gpu_cache_usage_perc", "gauge", "Old name of kv_cache_usage_perc.", "kv_cache_usage_perc"),
    Described("cache_config_info", "gauge", "Always 1; its labels tell size and type of the KV cache."),
    Described("prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache."),
    Described("prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache."),
    Described("gpu_prefix_cache_queries", "counter", "Old name of prefix_cache_queries.", "prefix_cache_queries"),
    Described("gpu_prefix_cache_hits", "counter", "Old name of prefix_cache_hits.", "prefix_cache_hits"),
    Described("num_preemptions", "counter", "Times a request lost its pages to others and had to be computed again."),
    Described("prompt_tokens", "counter", "Prompt tokens, counted with the first token that follows them."),
    Described("generation_tokens", "counter", "Tokens generated."),
    Described("request_success", "counter", "Sequences that ended, by reason."),
    Described("admission_rejections", "counter", "Requests that were told to come back later, by the error's code."),
    Described("iteration_tokens_total", "histogram", "Tokens computed in a step, and last tokens, which need no more."),
    Described("time_to_first_token_seconds", "histogram", "From arrival to the first token."),
    Described("inter_token_latency_seconds", "histogram", "Between two tokens of a sequence."),
    Described(
        "time_per_output_token_seconds",
        "histogram",
        "Old name of inter_token_latency_seconds.",
        "inter_token_latency_seconds",
    ),
    Described(
        "request_time_per_output_token_seconds",
        "histogram",
        "Mean time between the tokens of a sequence; none for a single token.",
    ),
    Described("e2e_request_latency_seconds", "histogram", "From arrival to the end."),
    Described("request_queue_time_seconds", "histogram", "From arrival until first scheduled."),
    Described("request_inference_time_seconds", "histogram", "From first scheduled to the last token."),
    Described("request_prefill_time_seconds", "histogram", "From first scheduled to the first token."),
    Described("request_decode_time_seconds", "histogram", "From the first token to the last."),
    Described("request_prompt_tokens", "histogram", "Prompt tokens of a sequence."),
    Described("request_generation_tokens", "histogram", "Generated tokens of a sequence."),
    Described("request_max_num_generation_tokens", "histogram", "Tokens of a request's longest sequence."),
    Described("request_num_preemptions", "histogram", "Preemptions of a sequence that ended."),
    Described("request_params_n", "histogram", "The parameter n of a request."),
    Described("request_params_max_tokens", "histogram", "The parameter max_tokens, or the room there was without it."),
    Described("compilations_after_warmup", "counter", "Compilations during steps, of which there should be none."),
    Described("engine_restarts", "counter", "Times the engine ended or hung, and another one took its place."),
    Described("api_server_restarts", "counter", "Times one of several API server processes ended and was restarted."),
    Described("step_seconds", "histogram", "One step of the engine, from scheduling to outputs."),
    Described("batch_fill", "histogram", "Share of a compiled shape that held tokens, 0 to 1; the rest is padding."),
)
"""All of them, in the order in which they are exposed. Times are in seconds."""

_LATENCY = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_PER_TOKEN = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_FILL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_BATCH = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

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
}


_OF_ENGINE = frozenset(
    (
        *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "compilations_after_warmup"),
        *("engine_restarts", "api_server_restarts"),
        *("iteration_tokens_total", "step_seconds", "batch_fill", "request_num_preemptions"),
    )
)
"""Values that the engine or its supervisor tells; all others are measured of requests."""


_BY_REASON = ("request_success", "admission_rejections")
"""Counters of which there is one for each reason."""


class Measured(msgspec.Struct):
    """What was measured of requests so far: by name, counts, and of histograms the counts and the sum."""

    counters: dict[str, int]
    finished: dict[str, int]
    histograms: dict[str, tuple[list[int], float]]
    http: HttpMeasured = msgspec.field(default_factory=HttpMeasured)


class EngineState(msgspec.Struct):
    """What an engine has told: its state after the last step, and what was counted of its steps."""

    stats: StepStats
    measured: Measured


class Metrics(Collector):
    """What Prometheus is told, from numbers of its own in a registry of its own.

    One thread observes; any thread may ask for the exposition, which takes some milliseconds.

    Aborted sequences are counted in `request_success` and nowhere else: how long somebody waited who then left says
    nothing about the engine.
    """

    def __init__(self, info: EngineInfo, model_name: str, prefix: str = "jaxllm") -> None:
        self._info = info
        self._model_name = model_name
        self._prefix = prefix
        self._stats = StepStats()
        self.http = HttpMetrics()
        """What is counted of HTTP requests."""
        counters = (metric.source for metric in METRICS if metric.kind == "counter")
        self._counters = {name: 0 for name in counters if name not in _BY_REASON}
        self._finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._histograms = _histograms(info.max_model_len)

    def measured(self) -> Measured:
        """What was measured of requests so far, for `with_others` in another process."""
        return Measured(
            {name: count for name, count in self._counters.items() if name not in _OF_ENGINE},
            dict(self._finished),
            {name: histogram.state() for name, histogram in self._histograms.items() if name not in _OF_ENGINE},
            self.http.measured(),
        )

    def engine_state(self) -> EngineState:
        """What the engine has told, for `with_others` in another process."""
        return EngineState(
            self._stats,
            Measured(
                {name: count for name, count in self._counters.items() if name in _OF_ENGINE},
                {},
                {name: histogram.state() for name, histogram in self._histograms.items() if name in _OF_ENGINE},
            ),
        )

    def with_others(self, others: Sequence[Measured], engine: EngineState | None = None) -> "Metrics":
        """These metrics and what other processes have measured of their requests before the same engine.

        `engine` is what was told of it, where somebody has heard more of it than this process.
        """
        joined = Metrics(self._info, self._model_name, self._prefix)
        engine = engine or self.engine_state()
        joined._stats = engine.stats
        for measured in (self.measured(), engine.measured, *others):
            joined.add(measured)
        return joined

    def add(self, other: Measured) -> None:
        """Add what another process has measured."""
        for name, count in other.counters.items():
            self._counters[name] += count
        for reason, count in other.finished.items():
            self._finished[reason] += count
        for name, state in other.histograms.items():
            self._histograms[name].add(*state)
        self.http.add(other.http)

    def observe(self, stats: StepStats | None, measured: Measurements | None) -> None:
        """Take one message of the engine."""
        if stats is not None:
            self._take_stats(stats)
        if measured is not None:
            counters, histograms = self._counters, self._histograms
            counters["prompt_tokens"] += measured.prompt_tokens
            counters["generation_tokens"] += measured.generation_tokens
            histograms["time_to_first_token_seconds"].observe_all(measured.first_token_seconds)
            histograms["inter_token_latency_seconds"].observe_all(measured.inter_token_seconds)
            if measured.finished:
                self._take_finished(measured.finished)

    def count_api_server_restart(self) -> None:
        """Another API server process has taken the place of one that ended."""
        self._counters["api_server_restarts"] += 1

    def count_engine_restart(self, info: EngineInfo) -> None:
        """Another engine has taken the place of one that ended."""
        self._info = info
        self._counters["engine_restarts"] += 1

    def _take_stats(self, stats: StepStats) -> None:
        before, self._stats = self._stats, stats
        counters, histograms, steps = self._counters, self._histograms, stats.num_steps
        counters["prefix_cache_queries"] += _grown(before.prefix_queries, stats.prefix_queries)
        counters["prefix_cache_hits"] += _grown(before.prefix_hits, stats.prefix_hits)
        counters["num_preemptions"] += _grown(before.num_preemptions, stats.num_preemptions)
        counters["compilations_after_warmup"] += _grown(before.num_compilations, stats.num_compilations)
        if stats.preemptions:
            histograms["request_num_preemptions"].observe_all(stats.preemptions)
        if steps:
            # Of several steps in one message only the sum is known.
            histograms["iteration_tokens_total"].observe((stats.num_tokens + stats.num_last) / steps, steps)
            histograms["step_seconds"].observe(stats.step_seconds / steps, steps)
            histograms["batch_fill"].observe(stats.num_tokens / stats.bucket_tokens, steps)

    def _take_finished(self, finished: Sequence[FinishedRequest]) -> None:
        for request in finished:
            self._finished[request.reason] += 1
        done = [request for request in finished if request.reason != "abort"]
        for name, value_of in _OF_FINISHED.items():
            values = [value for value in map(value_of, done) if value is not None]
            self._histograms[name].observe_all(values)
        longest = self._info.max_model_len
        self._histograms["request_params_max_tokens"].observe_all(
            [longest - each.prompt_tokens if each.max_tokens is None else each.max_tokens for each in done]
        )

    def exposition(self, accept: str = "", *, process: bool = True) -> tuple[bytes, str]:
        """(body, content type) for an Accept header: Prometheus' text format, or OpenMetrics where it is asked for.

        With `process`, also processor time, memory and so on of this process.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        if process:
            ProcessCollector(registry=registry)
        _, content_type = choose_encoder(accept)
        encode = generate_openmetrics if content_type.startswith("application/openmetrics-text") else generate_text
        # Our names need no escaping in any format. The encoders would still turn the colons of OpenMetrics' samples
        # (not of their headings) into underscores for scrapers that do not ask for UTF-8.
        return encode(registry, escaping=ALLOWUTF8), content_type

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; the registry calls it."""
        labels = {"model_name": self._model_name, "engine": ENGINE}
        for metric in METRICS:
            name = f"{self._prefix}:{metric.name}"
            match metric.kind:
                case "gauge":
                    gauge = GaugeMetricFamily(name, metric.meaning)
                    if metric.source == "num_requests_waiting_by_reason":
                        for reason, number in self._waiting().items():
                            gauge.add_sample(name, {**labels, "reason": reason}, number)
                    else:
                        own, value = self._gauge(metric.source)
                        gauge.add_sample(name, own or labels, value)
                    yield gauge
                case "counter":
                    counter = CounterMetricFamily(name, metric.meaning)
                    for more, count in self._counts(metric.source):
                        counter.add_sample(f"{name}_total", {**labels, **more}, count)
                    yield counter
                case "histogram":
                    histogram = self._histograms[metric.source]
                    family = HistogramMetricFamily(name, metric.meaning, labels=list(labels))
                    family.add_metric(list(labels.values()), histogram.buckets(), histogram.sum)
                    yield family
        yield from self.http.collect()

    def _waiting(self) -> dict[str, int]:
        """Requests that wait, by reason."""
        deferred = self._stats.num_deferred
        return {"capacity": self._stats.num_waiting - deferred, "deferred": deferred}

    def _counts(self, name: str) -> list[tuple[dict[str, str], int]]:
        """Values of a counter, with the labels that tell them apart."""
        if name == "request_success":
            return [({"finished_reason": reason}, count) for reason, count in self._finished.items()]
        if name == "admission_rejections":
            return [({"reason": reason}, count) for reason, count in self.http.rejections.items()]
        return [({}, self._counters[name])]

    def _gauge(self, name: str) -> tuple[dict[str, str], float]:
        """Value of a gauge, with its labels if they are not the usual ones."""
        match name:
            case "num_requests_running":
                return {}, self._stats.num_running
            case "num_requests_waiting":
                return {}, self._stats.num_waiting
            case "kv_cache_usage_perc":
                return {}, self._stats.kv_usage
        assert name == "cache_config_info"
        info = self._info
        return {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_pages - 1),
            "cache_dtype": info.dtype,
            "enable_prefix_caching": str(info.enable_prefix_caching),
            "engine": ENGINE,
        }, 1.0


def _histograms(max_model_len: int) -> dict[str, Histogram]:
    """Empty histograms by name. Bounds are vLLM's, with some smaller ones in front for fast models."""
    lengths = _one_two_five(max_model_len)
    bounds: dict[str, Sequence[float]] = {
        "iteration_tokens_total": _BATCH,
        "time_to_first_token_seconds": _FIRST_TOKEN,
        "inter_token_latency_seconds": _PER_TOKEN,
        "request_time_per_output_token_seconds": _PER_TOKEN,
        "request_prompt_tokens": lengths,
        "request_generation_tokens": lengths,
        "request_max_num_generation_tokens": lengths,
        "request_params_max_tokens": lengths,
        "request_params_n": _N,
        "request_num_preemptions": _PREEMPTIONS,
        "step_seconds": _STEP,
        "batch_fill": _FILL,
    }
    names = {metric.source for metric in METRICS if metric.kind == "histogram"}
    return {name: Histogram(bounds.get(name, _LATENCY)) for name in names}


def _one_two_five(largest: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`."""
    bounds = (factor * 10**power for power in range(len(str(largest))) for factor in (1, 2, 5))
    return [float(bound) for bound in bounds if bound <= largest]


def _grown(before: int, now: int) -> int:
    """By how much a total has grown; an engine that started anew counts from 0."""
    return now - before if now >= before else now
