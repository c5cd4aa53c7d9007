"""What the page says of the model and the engine."""

from types import SimpleNamespace
from typing import Any

from jaxllm.engine.stats import StepStats
from jaxllm.serving.telemetry.step_times import StepTimes
from jaxllm.serving.ui.about import StepShape, _shapes


def ran(tokens: int, steps: int, seconds: float) -> Any:
    """The numbers of an engine that ran steps in one shape."""
    times = StepTimes()
    times.observe(StepStats(num_steps=steps, bucket_tokens=tokens, step_seconds=seconds))
    return SimpleNamespace(steps=times)


def test_shapes_of_all_engines_together_with_those_that_never_ran() -> None:
    engines = [ran(8, 3, 0.75), ran(8, 1, 0.25), ran(16, 2, 1.0)]
    assert _shapes({8: 0.125, 32: 2.0}, engines) == [
        StepShape(8, 4, 0.25, 0.125),
        StepShape(16, 2, 0.5, None),
        StepShape(32, 0, None, 2.0),
    ]
