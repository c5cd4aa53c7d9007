"""Counts what engines tell and what their requests measure, and says it to Prometheus."""

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from jaxllm.config.engine_info import EngineInfo, StageInfo
from jaxllm.engine.stats import StepStats
from jaxllm.serving.telemetry.catalogue import (
    EXTERNAL,
    FAILED,
    FAILURES,
    METRICS,
    OFFLOAD,
    OFFLOAD_SHARES,
    TRANSFER,
    WORK,
    Described,
)
from jaxllm.serving.telemetry.engine_metrics import EngineMetrics, EngineState, Measured
from jaxllm.serving.telemetry.http import HttpMeasured, HttpMetrics
from jaxllm.serving.telemetry.step_times import collect_steps
from jaxllm.serving.text.measurements import Measurements

Labels = dict[str, str]

LAYERS = "stage_layers", "Layers of a pipeline stage."
WEIGHTS = "stage_weight_bytes", "Bytes of weights on each device of a stage."
CACHE = "stage_kv_cache_bytes", "Bytes of the KV cache on each device of a stage."
BUSY = (
    "stage_busy_seconds",
    "Time that a stage spent computing; the rest of the time it waited for another stage or for the host.",
)
"""Name and meaning of each."""


class ProcessMeasured(msgspec.Struct):
    """The measurements of one process so far: of the requests to each engine, and of HTTP."""

    engines: list[Measured]
    http: HttpMeasured = msgspec.field(default_factory=HttpMeasured)
    without_engine: list[int] = []
    """Requests that wait for each engine to be started again; of a process that is gone, none."""


class Metrics(Collector):
    """The metrics for Prometheus, from numbers of its own in a registry of its own. Each engine is a label.

    One thread observes; any thread may ask for the exposition, which takes some milliseconds.
    """

    def __init__(
        self, info: EngineInfo, model_name: str, prefix: str = "jaxllm", engines: int = 1, first: int = 0
    ) -> None:
        """Metrics of so many engines, all described by `info`; the rank of the `first` may differ from 0."""
        self._first = first
        self._model_name = model_name
        self._prefix = prefix
        self._engines = [EngineMetrics(info) for _ in range(engines)]
        self.http = HttpMetrics()
        """The metrics of HTTP requests."""

    @property
    def engines(self) -> Sequence[EngineMetrics]:
        """The numbers of each engine, those that were removed included."""
        return self._engines

    def measured(self) -> ProcessMeasured:
        """Measurements of requests so far, for `with_others` in another process."""
        return ProcessMeasured(
            [engine.measured() for engine in self._engines],
            self.http.measured(),
            [engine.num_without_engine for engine in self._engines],
        )

    def engine_states(self) -> list[EngineState]:
        """The engines' states, for `with_others` in another process."""
        return [engine.state() for engine in self._engines]

    def with_others(
        self,
        others: Sequence[ProcessMeasured],
        engines: Sequence[EngineState] | None = None,
        own: ProcessMeasured | None = None,
    ) -> "Metrics":
        """These metrics and what other processes have measured of their requests before the same engines.

        `engines` is what was told of them, where somebody has heard more of them than this process; `own` is what this
        one has measured, if not up to now.
        """
        states = engines or self.engine_states()
        joined = Metrics(self._engines[0].info, self._model_name, self._prefix, len(states), self._first)
        for number, (known, joint) in enumerate(zip(states, joined._engines, strict=True)):
            joint.info, joint.stats, joint.is_there = self._engine(number).info, known.stats, known.is_there
            joint.memory = known.memory
            joint.add(known.measured)
        for measured in (own or self.measured(), *others):
            joined.add(measured)
        return joined

    def add(self, other: ProcessMeasured) -> None:
        """Add what another process has measured."""
        for number, measured in enumerate(other.engines):
            self._engine(number).add(measured)
        for number, count in enumerate(other.without_engine):
            self._engine(number).num_without_engine += count
        self.http.add(other.http)

    def observe(self, stats: StepStats | None, measured: Measurements | None, engine: int = 0) -> None:
        """Take one message of an engine."""
        self._engine(engine).observe(stats, measured)

    def resize(self, size: int) -> None:
        """There are so many engines now. What was counted of others stays: counters do not go back."""
        self._engine(size - 1)
        for number, engine in enumerate(self._engines):
            engine.is_there = number < size

    def _engine(self, number: int) -> EngineMetrics:
        while number >= len(self._engines):
            self._engines.append(EngineMetrics(self._engines[0].info))
        return self._engines[number]

    def count_api_server_restart(self) -> None:
        """Another API server process has taken the place of one that ended."""
        self._engines[0].counters["api_server_restarts"] += 1

    def set_without_engine(self, counts: Sequence[int]) -> None:
        """So many requests of this process wait for each engine to be started again."""
        for number, count in enumerate(counts):
            self._engine(number).num_without_engine = count

    def set_engine_memory(self, number: int, size: int) -> None:
        """The process of an engine has so many bytes."""
        self._engine(number).memory = size

    def observe_engine_lag(self, seconds: float, number: int) -> None:
        """An engine has answered after so long."""
        self._engine(number).histograms["engine_loop_lag_seconds"].observe(seconds)

    def set_media_cache(self, queries: int, hits: int) -> None:
        """So many images were looked up among the processed ones of this process, and so many found."""
        counters = self._engines[0].counters
        counters["mm_cache_queries"], counters["mm_cache_hits"] = queries, hits

    def count_engine_restart(self, info: EngineInfo, engine: int = 0) -> None:
        """Another engine has taken the place of one that ended."""
        self._engine(engine).info = info
        self._engine(engine).counters["engine_restarts"] += 1

    def count_resumed(self, requests: int, engine: int = 0) -> None:
        """So many requests go on after the end of their engine."""
        self._engine(engine).counters["requests_resumed"] += requests

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
        engines = [
            ({"model_name": self._model_name, "engine": str(n)}, each)
            for n, each in enumerate(self._engines, self._first)
        ]
        for metric in METRICS:
            yield self._family(metric, engines)
        yield from collect_steps(
            self._prefix, [(labels, each.steps, each.info.planned_step_seconds) for labels, each in engines]
        )
        yield from collect_stages(
            self._prefix, [(labels, each.info.stages, each.stage_seconds) for labels, each in engines if each.is_there]
        )
        yield from self.http.collect()

    def _family(self, metric: Described, engines: Sequence[tuple[Labels, EngineMetrics]]) -> Metric:
        """One metric of all engines."""
        name = f"{self._prefix}:{metric.name}"
        match metric.kind:
            case "gauge":
                gauge = GaugeMetricFamily(name, metric.meaning)
                for number, (labels, engine) in enumerate(engines):
                    if not engine.is_there:
                        continue
                    if metric.name == "process_memory_bytes" and number == 0:
                        gauge.add_sample(name, {**labels, "process": "api_server"}, self.http.memory)
                    for own, value in _gauges(metric.source, labels, engine):
                        gauge.add_sample(name, own, value)
                return gauge
            case "counter":
                counter = CounterMetricFamily(name, metric.meaning)
                # What is counted of HTTP belongs to no engine: the first one has it.
                for number, (labels, engine) in enumerate(engines):
                    http = self.http if number == 0 else None
                    for more, count in _counts(metric, engine, http):
                        counter.add_sample(f"{name}_total", {**labels, **more}, count)
                return counter
            case "histogram":
                family = HistogramMetricFamily(name, metric.meaning, labels=list(engines[0][0]))
                of_server = metric.name == "event_loop_lag_seconds"
                for labels, engine in engines[:1] if of_server else engines:
                    histogram = self.http.loop_lag if of_server else engine.histograms[metric.source]
                    family.add_metric(list(labels.values()), histogram.buckets(), histogram.sum)
                return family


def _counts(metric: Described, engine: EngineMetrics, http: HttpMetrics | None) -> Sequence[tuple[Labels, int | float]]:
    """Values of a counter, with the labels that tell them apart."""
    match metric.name:
        case "request_success":
            return [({"finished_reason": reason}, count) for reason, count in engine.finished.items()]
        case "admission_rejections":
            return [] if http is None else [({"reason": reason}, count) for reason, count in http.rejections.items()]
        case "request_timeouts":
            return [] if http is None else [({"place": place}, count) for place, count in http.timeouts.items()]
        case "spec_decode_num_accepted_tokens_per_pos":
            return [({"position": str(place)}, count) for place, count in enumerate(engine.accepted_by_place or [0])]
        case "prompt_tokens_by_source":
            cached = engine.counters["prompt_tokens_cached"]
            computed = engine.counters["prompt_tokens"] - cached
            external = engine.counters[EXTERNAL]
            return [
                ({"source": "local_compute"}, computed),
                ({"source": "local_cache_hit"}, cached - external),
                ({"source": "external_kv_transfer"}, external),
            ]
        case "kv_transfer_failures":
            return [({"reason": name.removeprefix(FAILED)}, engine.counters[name]) for name in FAILURES]
        case "prompt_tokens_cached_by_source":
            return [({"source": "device"}, engine.counters[metric.source])]
        case name if name in OFFLOAD:
            # vLLM numbers tiers after the host's memory, and says what they are.
            tier = {"tier": "1:fs"} if "_tiering_" in name else {}
            return [(tier, engine.counters[name] / OFFLOAD[name][1])]
        case name if name in TRANSFER:
            return [({}, engine.counters[name] / TRANSFER[name][1])]
        case name if name in WORK:
            return [({}, engine.work[WORK.index(name)])]
    return [({}, engine.counters[metric.source])]


_OF_STATS = {
    "num_requests_running": "num_running",
    "kv_cache_usage_perc": "kv_usage",
    "state_snapshots": "num_snapshots",
    "weights_version": "weights_version",
}
"""Gauges that are fields of an engine's state."""


def _gauges(name: str, labels: Labels, engine: EngineMetrics) -> list[tuple[Labels, float]]:
    """Values of a gauge, with their labels."""
    match name:
        case _ if name in _OF_STATS:
            return [(labels, getattr(engine.stats, _OF_STATS[name]))]
        case _ if name in OFFLOAD_SHARES:
            return [(labels, getattr(engine.stats.offload, OFFLOAD_SHARES[name]))]
        case "num_requests_waiting":
            return [(labels, sum(engine.waiting().values()))]
        case "kv_transfer_leases":
            return [(labels, engine.stats.transfer.leases)]
        case "num_requests_waiting_by_reason":
            return [({**labels, "reason": reason}, number) for reason, number in engine.waiting().items()]
        case "engine_sleep_state":
            states = ("awake", "weights_offloaded", "discard_all")
            return [
                ({**labels, "sleep_state": state}, float(level == engine.stats.sleep_level))
                for level, state in enumerate(states)
            ]
        case "process_memory_bytes":
            return [({**labels, "process": "engine"}, engine.memory)] if engine.memory else []
        case "peak_flops_per_gpu" | "peak_bytes_per_second_per_gpu":
            peak = engine.info.peaks[0 if name == "peak_flops_per_gpu" else 1]
            return [(labels, peak)] if peak else []
        case "lora_requests_info":
            return _adapters(labels, engine)
    assert name == "cache_config_info"
    info = engine.info
    config = {
        "block_size": str(info.block_size),
        "num_gpu_blocks": str(info.num_pages - 1),
        "cache_dtype": info.kv_cache_dtype,
        "enable_prefix_caching": str(info.enable_prefix_caching),
        "kv_cache_size_tokens": str(info.kv_tokens),
        "kv_cache_max_concurrency": str(info.max_concurrency),
        "engine": labels["engine"],
    }
    return [(config, 1.0)]


def _adapters(labels: Labels, engine: EngineMetrics) -> list[tuple[Labels, float]]:
    """As vLLM has it, for load balancers: the sample with the latest time is the one that holds."""
    if not engine.info.max_loras:
        return []
    names = {
        "max_lora": str(engine.info.max_loras),
        "running_lora_adapters": ",".join(engine.stats.running_loras),
        "waiting_lora_adapters": ",".join(engine.stats.waiting_loras),
    }
    return [({**labels, **names}, time.time())]


def collect_stages(
    prefix: str, engines: Sequence[tuple[Mapping[str, str], Sequence[StageInfo], Sequence[float]]]
) -> Iterator[Metric]:
    """Metrics of engines' stages, from labels, stages and busy times; none if no engine has stages."""
    if not any(stages for _, stages, _ in engines):
        return
    names = [*engines[0][0], "stage"]
    layers, weights, cache = (
        GaugeMetricFamily(f"{prefix}:{name}", meaning, labels=names) for name, meaning in (LAYERS, WEIGHTS, CACHE)
    )
    busy = CounterMetricFamily(f"{prefix}:{BUSY[0]}", BUSY[1], labels=names)
    for labels, stages, seconds in engines:
        for number, stage in enumerate(stages):
            own = [*labels.values(), str(number)]
            layers.add_metric(own, stage.stop - stage.start)
            weights.add_metric(own, stage.weight_bytes)
            cache.add_metric(own, stage.cache_bytes)
        for number, worked in enumerate(seconds):
            busy.add_metric([*labels.values(), str(number)], worked)
    yield from (layers, weights, cache, busy)
