"""The histogram, held against the one of prometheus_client."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference

from jaxllm.serving.telemetry.histogram import FEW, Histogram, HistogramState

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


def test_exemplars_are_in_the_buckets_of_prometheus_and_the_newer_one_is_kept() -> None:
    registry = CollectorRegistry()
    reference = Reference("x", "x", buckets=BOUNDS, registry=registry)
    ours, other = Histogram(BOUNDS), Histogram(BOUNDS)
    # Those of both, and of either alone; the last is beyond all bounds.
    for number, value in enumerate([0.25, 0.5, 1.5, 2.5, 41]):
        histogram = (ours, other)[number % 2]
        histogram.observe(value)
        histogram.set_exemplar(value, f"trace-{number}")
        reference.observe(value, {"trace_id": f"trace-{number}"})
    merged = Histogram(BOUNDS)
    for states in ((ours.state(), other.state()), (other.state(), ours.state())):
        merged = Histogram(BOUNDS)
        for state in states:
            # As it travels to other processes.
            merged.add(*msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=HistogramState))
        (family,) = registry.collect()
        wanted = [sample for sample in family.samples if sample.name == "x_bucket"]
        for sample, (bound, count, *exemplar) in zip(wanted, merged.buckets(), strict=True):
            assert (bound, count) == (sample.labels["le"], sample.value)
            known = sample.exemplar and (sample.exemplar.labels, sample.exemplar.value)
            assert [(each.labels, each.value) for each in exemplar] == ([known] if known else [])
