"""The result of `LLM.get_metrics`: the numbers of /metrics, as objects."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric as Family

from jaxllm.serving.telemetry.metrics import Metrics


@dataclass
class Metric:
    """A number with a name, such as `jaxllm:num_requests_running`, and labels."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """It only grows."""

    value: int


@dataclass
class Gauge(Metric):
    """It goes up and down."""

    value: float


@dataclass
class Vector(Metric):
    """Counters in a row, by position."""

    values: list[int]


@dataclass
class Histogram(Metric):
    """`buckets` are the numbers of values up to each limit, `count` that of all values, and `sum` their sum."""

    count: int
    sum: float
    buckets: dict[str, int]


def snapshot(metrics: Metrics) -> list[Metric]:
    """All metrics as they are now."""
    return [each for family in metrics.collect() for each in _of(family)]


def _of(family: Family) -> Iterator[Metric]:
    if family.type == "gauge":
        yield from (Gauge(family.name, sample.labels, sample.value) for sample in family.samples)
    elif any("position" in sample.labels for sample in family.samples):
        yield from _vectors(family)
    elif family.type == "counter":
        yield from (Counter(family.name, sample.labels, int(sample.value)) for sample in family.samples)
    elif family.type == "histogram":
        yield from _histograms(family)


def _vectors(family: Family) -> Iterator[Vector]:
    """One for each set of labels, of samples for each position in order."""
    found: dict[frozenset[tuple[str, str]], Vector] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "position"}
        found.setdefault(frozenset(labels.items()), Vector(family.name, labels, [])).values.append(int(sample.value))
    yield from found.values()


def _histograms(family: Family) -> Iterator[Histogram]:
    """One for each set of labels, of samples for each bucket, the count and the sum."""
    found: dict[frozenset[tuple[str, str]], Histogram] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        histogram = found.setdefault(frozenset(labels.items()), Histogram(family.name, labels, 0, 0.0, {}))
        if sample.name.endswith("_bucket"):
            histogram.buckets[sample.labels["le"]] = int(sample.value)
        elif sample.name.endswith("_count"):
            histogram.count = int(sample.value)
        elif sample.name.endswith("_sum"):
            histogram.sum = sample.value
    yield from found.values()
