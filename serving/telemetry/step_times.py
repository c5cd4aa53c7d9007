"""How long steps take, by the compiled shape they ran in, compared with what was planned."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric

from jaxllm.engine.stats import StepStats
from jaxllm.serving.telemetry.histogram import Histogram, HistogramState

_SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
    2.0, 5.0, 10.0, 60.0,
)  # fmt: skip

MEASURED = "step_seconds_by_shape", "Time of one engine step, by the number of tokens of its compiled shape."
PLANNED = (
    "planned_step_seconds",
    "Time that jaxllm plan estimates for a step that fills the shape, if the chip is known.",
)
"""Name and meaning of each."""

ShapeState = dict[int, HistogramState]
"""Histograms by the tokens of a shape, see `Histogram.state`."""


class StepTimes:
    """Counts steps."""

    def __init__(self) -> None:
        self._histograms: dict[int, Histogram] = {}

    def observe(self, stats: StepStats) -> None:
        """Count a step, or those that are merged; of these, each shape's mean once per step."""
        for tokens, steps, seconds in stats.shapes():
            self._of(tokens).observe(seconds / steps, steps)

    def _of(self, tokens: int) -> Histogram:
        if tokens not in self._histograms:
            self._histograms[tokens] = Histogram(_SECONDS)
        return self._histograms[tokens]

    def state(self) -> ShapeState:
        """The counts, for `add`."""
        return {tokens: histogram.state() for tokens, histogram in self._histograms.items()}

    def add(self, state: ShapeState) -> None:
        """Add what was counted elsewhere."""
        for tokens, counted in state.items():
            self._of(tokens).add(*counted)

    def sorted(self) -> list[tuple[int, Histogram]]:
        """Tokens of a shape and what was counted of it."""
        return sorted(self._histograms.items())


def collect_steps(
    prefix: str, engines: Sequence[tuple[Mapping[str, str], StepTimes, Mapping[int, float]]]
) -> Iterator[Metric]:
    """The counts of engines so far, each with its labels and `planned` seconds by the tokens of a shape."""
    names = [*engines[0][0], "shape"]
    measured = HistogramMetricFamily(f"{prefix}:{MEASURED[0]}", MEASURED[1], labels=names)
    plan = GaugeMetricFamily(f"{prefix}:{PLANNED[0]}", PLANNED[1], labels=names)
    for labels, steps, planned in engines:
        for tokens, histogram in steps.sorted():
            measured.add_metric([*labels.values(), str(tokens)], histogram.buckets(), histogram.sum)
        for tokens, seconds in sorted(planned.items()):
            plan.add_metric([*labels.values(), str(tokens)], seconds)
    yield measured
    yield plan
