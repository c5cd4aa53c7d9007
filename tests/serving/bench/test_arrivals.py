import math

import numpy as np
import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.arrivals import ramp_rates, rate_changes, send_times, times_of
from jaxllm.serving.bench.options import LoadOptions


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_all_at_once() -> None:
    assert send_times(3, float("inf"), 1.0, rng()) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 50.0])
def test_times_follow_rate_and_burstiness(burstiness: float) -> None:
    times = np.array(send_times(5000, 10.0, burstiness, rng()))
    gaps = np.diff(times, prepend=0.0)
    assert times[-1] == pytest.approx(500.0)
    assert gaps.min() >= 0
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)


def test_without_bursts_gaps_are_equal() -> None:
    assert send_times(4, 2.0, math.inf, rng()) == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_a_linear_ramp_sends_ever_faster() -> None:
    options = LoadOptions(ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=5, burstiness=math.inf)
    times, rates = times_of(options, 5, rng())
    assert rates is not None
    assert rates.tolist() == [1, 2, 3, 4, 5]
    assert np.diff(times, prepend=0.0).tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert [rate for rate, _ in rate_changes(rates, times)] == [1, 2, 3, 4, 5]
    assert [at for _, at in rate_changes(rates, times)] == pytest.approx([0.0, *times[1:]])


def test_an_exponential_ramp_grows_by_equal_ratios() -> None:
    assert ramp_rates(4, "exponential", 1, 8).tolist() == pytest.approx([1, 2, 4, 8])


def test_a_ramp_may_begin_at_nothing() -> None:
    rates = ramp_rates(10, "linear", 0, 9)
    assert rates.min() > 0
    assert rates[-1] == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_rate": 0}, "request_rate=0: must be greater than 0"),
        ({"burstiness": math.nan}, "burstiness=nan: must be greater than 0"),
        ({"ramp_up_start_rps": 1}, "require ramp_up_strategy"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1}, "requires ramp_up_start_rps and a ramp_up_end_rps"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 3, "ramp_up_end_rps": 2},
            "greater than 0 and not smaller",
        ),
        (
            {"ramp_up_strategy": "exponential", "ramp_up_start_rps": 0, "ramp_up_end_rps": 2},
            "must be greater than 0 for an exponential ramp",
        ),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2, "request_rate": 3},
            "cannot be combined",
        ),
    ],
)
def test_wrong_rates(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadOptions(**options)  # type: ignore[arg-type]
