"""Counts what the engine tells and what its requests measure, and says it to Prometheus."""

from collections.abc import Callable, Iterator, Sequence

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
from jaxllm.serving.telemetry.catalogue import BY_REASON, METRICS, OF_ENGINE, new_histograms
from jaxllm.serving.telemetry.http import HttpMeasured, HttpMetrics
from jaxllm.serving.text.measurements import FinishedRequest, Measurements

FINISHED_REASONS = ("stop", "length", "abort")
ENGINE = "0"
"""Value of the label `engine`: there is one."""

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
        self._counters = {name: 0 for name in counters if name not in BY_REASON}
        self._finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._histograms = new_histograms(info.max_model_len)

    def measured(self) -> Measured:
        """What was measured of requests so far, for `with_others` in another process."""
        return Measured(
            {name: count for name, count in self._counters.items() if name not in OF_ENGINE},
            dict(self._finished),
            {name: histogram.state() for name, histogram in self._histograms.items() if name not in OF_ENGINE},
            self.http.measured(),
        )

    def engine_state(self) -> EngineState:
        """What the engine has told, for `with_others` in another process."""
        return EngineState(
            self._stats,
            Measured(
                {name: count for name, count in self._counters.items() if name in OF_ENGINE},
                {},
                {name: histogram.state() for name, histogram in self._histograms.items() if name in OF_ENGINE},
            ),
        )

    def with_others(
        self, others: Sequence[Measured], engine: EngineState | None = None, own: Measured | None = None
    ) -> "Metrics":
        """These metrics and what other processes have measured of their requests before the same engine.

        `engine` is what was told of it, where somebody has heard more of it than this process; `own` is what this one
        has measured, if not up to now.
        """
        joined = Metrics(self._info, self._model_name, self._prefix)
        engine = engine or self.engine_state()
        joined._stats = engine.stats
        for measured in (own or self.measured(), engine.measured, *others):
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


def _grown(before: int, now: int) -> int:
    """By how much a total has grown; an engine that was started again counts from 0."""
    return now - before if now >= before else now
