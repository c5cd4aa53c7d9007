"""The metrics of HTTP requests, under the names of prometheus-fastapi-instrumentator, which vLLM uses."""

from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from jaxllm.serving.telemetry.histogram import Histogram, HistogramState

_SECONDS = (0.1, 0.5, 1.0)
_SECONDS_FINELY = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
REJECTIONS = ("queue_full", "engine_unavailable", "shutting_down", "overloaded")
"""Why requests are rejected; others are there once they happen."""
PLACES = ("preparation", "first_token", "decode")
"""Where a request may be when its time is over: before the engine, before its first token there, or after that."""
_MOST_SERIES = 1024
"""Series of one metric: paths, methods and statuses are few, whatever clients send."""

HTTP_METRICS = {
    "http_requests": ("counter", "handler, method, status", "HTTP requests, by status class such as 2xx."),
    "http_request_size_bytes": (
        "summary",
        "handler",
        "Size of request bodies in bytes, as declared by Content-Length.",
    ),
    "http_response_size_bytes": (
        "summary",
        "handler",
        "Size of response bodies in bytes, as declared by Content-Length; 0 for streams.",
    ),
    "http_request_duration_seconds": (
        "histogram",
        "handler, method",
        "Time from a request's headers to the end of its response.",
    ),
    "http_request_duration_highr_seconds": (
        "histogram",
        "",
        "Time from a request's headers to the end of its response, over all handlers, with fine buckets.",
    ),
}
"""Kind, labels and meaning of each."""


class HttpMeasured(msgspec.Struct):
    """The counts so far; the keys have their parts separated by spaces."""

    requests: dict[str, int] = {}
    sizes: dict[str, tuple[int, int, int]] = {}
    """By handler: requests, bytes of their bodies, and of their responses'."""
    seconds: dict[str, HistogramState] = {}
    rejections: dict[str, int] = {}
    """By reason: requests that were not taken for now."""
    timeouts: dict[str, int] = {}
    """By place: requests whose time was over."""
    loop_lag: HistogramState | None = None
    memory: int = 0
    """Bytes of the process; of several, those of the largest."""


class HttpMetrics:
    """Counts requests."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._sizes: dict[str, tuple[int, int, int]] = {}
        self._seconds: dict[str, Histogram] = {"": Histogram(_SECONDS_FINELY)}
        self.rejections = dict.fromkeys(REJECTIONS, 0)
        self.timeouts = dict.fromkeys(PLACES, 0)
        self.loop_lag = Histogram(_LAG)
        """Seconds by which the event loop is late."""
        self.memory = 0
        """Bytes of this process, or of the largest of several."""

    def observe(
        self, handler: str, method: str, status: int, seconds: float, received: int, sent: int, trace_id: str = ""
    ) -> None:
        """Count a request. `handler` is the path of its route; `trace_id` its trace, if a collector gets one."""
        key = f"{handler} {method}"
        counted = f"{key} {status // 100}xx"
        if counted not in self._requests and len(self._requests) >= _MOST_SERIES:
            return
        self._requests[counted] = self._requests.get(counted, 0) + 1
        count, before, after = self._sizes.get(handler, (0, 0, 0))
        self._sizes[handler] = (count + 1, before + received, after + sent)
        self._seconds[""].observe(seconds)
        if key not in self._seconds:
            self._seconds[key] = Histogram(_SECONDS)
        self._seconds[key].observe(seconds)
        if trace_id:
            for histogram in (self._seconds[""], self._seconds[key]):
                histogram.set_exemplar(seconds, trace_id)

    def reject(self, reason: str) -> None:
        """Count a request that was told to come back later."""
        self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def time_out(self, place: str) -> None:
        """Count a request whose time was over at one of `PLACES`."""
        self.timeouts[place] += 1

    def num_rejected(self) -> int:
        """Requests that were told to come back later, so far."""
        return sum(self.rejections.values())

    def measured(self) -> HttpMeasured:
        """The counts so far, for `add` in another process."""
        seconds = {key: histogram.state() for key, histogram in self._seconds.items()}
        counts = dict(self.rejections), dict(self.timeouts), self.loop_lag.state(), self.memory
        return HttpMeasured(dict(self._requests), dict(self._sizes), seconds, *counts)

    def add(self, other: HttpMeasured) -> None:
        """Add what was counted elsewhere."""
        for key, count in other.requests.items():
            self._requests[key] = self._requests.get(key, 0) + count
        for key, sizes in other.sizes.items():
            mine = self._sizes.get(key, (0, 0, 0))
            self._sizes[key] = (mine[0] + sizes[0], mine[1] + sizes[1], mine[2] + sizes[2])
        for key, state in other.seconds.items():
            if key not in self._seconds:
                self._seconds[key] = Histogram(_SECONDS)
            self._seconds[key].add(*state)
        for reason, count in other.rejections.items():
            self.rejections[reason] = self.rejections.get(reason, 0) + count
        for place, count in other.timeouts.items():
            self.timeouts[place] += count
        if other.loop_lag is not None:
            self.loop_lag.add(*other.loop_lag)
        self.memory = max(self.memory, other.memory)

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        kinds = {"counter": CounterMetricFamily, "summary": SummaryMetricFamily, "histogram": HistogramMetricFamily}
        for name, (kind, labels, meaning) in HTTP_METRICS.items():
            family: Metric = kinds[kind](name, meaning, labels=labels.split(", ") if labels else [])
            self._fill(family)
            yield family

    def _fill(self, family: Metric) -> None:
        match family:
            case CounterMetricFamily():
                for key, count in self._requests.items():
                    family.add_metric(key.split(" "), count)
            case SummaryMetricFamily():
                place = 1 if family.name == "http_request_size_bytes" else 2
                for handler, sizes in self._sizes.items():
                    family.add_metric([handler], sizes[0], sizes[place])
            case HistogramMetricFamily():
                of_all = family.name == "http_request_duration_highr_seconds"
                for key, histogram in self._seconds.items():
                    if (key == "") == of_all:
                        family.add_metric(key.split(" ") if key else [], histogram.buckets(), histogram.sum)
