"""Times of what runs on a device."""

import time
from collections.abc import Callable
from typing import Any

import jax


def best_seconds(call: Callable[[], Any], runs: int = 3) -> float:
    """The shortest time of a call until its results are there, after one call that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return min(times)


def share(value: float, peak: float | None) -> str:
    """`, 85 % of the peak`, or nothing where the peak is not known."""
    return f" ({value / peak:.0%} of the peak)" if peak else ""
