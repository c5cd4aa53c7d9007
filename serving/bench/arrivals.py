"""When a load test sends its requests."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxllm.serving.bench.options import LoadOptions


def send_times(count: int, rate: float, burstiness: float, rng: np.random.Generator) -> list[float]:
    """Seconds after the start at which requests are sent, `rate` of them per second on average.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, less comes in bursts, more is more
    even, infinity is all the same. They are scaled so that the last request is sent at `count / rate`. An infinite
    rate sends all at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = np.cumsum(_gaps(np.full(count, rate), burstiness, rng))
    return [float(each) for each in times * (count / rate / times[-1])]


def ramp_times(rates: np.ndarray, burstiness: float, rng: np.random.Generator) -> list[float]:
    """Seconds after the start at which requests are sent; `rates` (per second) holds that of each of them."""
    return [float(each) for each in np.cumsum(_gaps(rates, burstiness, rng))]


def ramp_rates(count: int, strategy: str, first: float, last: float) -> np.ndarray:
    """The rate of each request, growing from `first` to `last` in equal steps or, exponentially, in equal ratios."""
    progress = np.arange(count) / max(count - 1, 1)
    rates = first + (last - first) * progress if strategy == "linear" else first * (last / first) ** progress
    # A linear ramp may begin at nothing, at which no request would ever be sent.
    return np.where(rates > 0, rates, last / count)


def times_of(options: LoadOptions, count: int, rng: np.random.Generator) -> tuple[list[float], np.ndarray | None]:
    """When requests are sent, and where the rate grows the rate of each."""
    if options.ramp_up_strategy is None:
        return send_times(count, options.request_rate, options.burstiness, rng), None
    assert options.ramp_up_start_rps is not None
    assert options.ramp_up_end_rps is not None
    rates = ramp_rates(count, options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps)
    return ramp_times(rates, options.burstiness, rng), rates


def rate_changes(rates: np.ndarray, times: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Each whole rate per second as it is reached, with seconds after the start."""
    reached = int(rates[0])
    yield reached, 0.0
    for rate, at in zip(rates.tolist(), times, strict=True):
        while reached < int(rate + 1e-9):
            reached += 1
            yield reached, at


def _gaps(rates: np.ndarray, burstiness: float, rng: np.random.Generator) -> Any:
    if math.isinf(burstiness):
        return 1.0 / rates
    return rng.gamma(burstiness, 1.0 / (rates * burstiness))
