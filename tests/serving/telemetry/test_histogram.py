"""The histogram, held against the one of prometheus_client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference

from jaxllm.serving.telemetry.histogram import FEW, Histogram

BOUNDS = (0.001, 0.5, 1, 2.5, 40)

values = st.one_of(st.floats(0, 100, allow_nan=False), st.sampled_from(BOUNDS))


@given(st.lists(st.lists(values, max_size=2 * FEW), max_size=4), st.lists(st.tuples(values, st.integers(0, 3))))
def test_counts_as_prometheus_does(batches: list[list[float]], single: list[tuple[float, int]]) -> None:
    ours = Histogram(BOUNDS)
    registry = CollectorRegistry()
    reference = Reference("x", "x", buckets=BOUNDS, registry=registry)
    for batch in batches:
        ours.observe_all(batch)
        for value in batch:
            reference.observe(value)
    for value, times in single:
        ours.observe(value, times)
        for _ in range(times):
            reference.observe(value)
    (family,) = registry.collect()
    expected = [(sample.labels["le"], sample.value) for sample in family.samples if sample.name == "x_bucket"]
    assert ours.buckets() == expected
    assert ours.sum == pytest.approx(registry.get_sample_value("x_sum"))


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 1000])
def test_few_and_many(count: int) -> None:
    histogram = Histogram([1, 2])
    histogram.observe_all([2] * count)
    assert histogram.buckets() == [("1.0", 0), ("2.0", count), ("+Inf", count)]
    assert histogram.sum == 2 * count
