"""The soak: slopes and their intervals against lines that are known, and its load against a real server."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks.shared.memory_growth import MemorySampler, slope
from benchmarks.shared.running_server import RunningServer
from benchmarks.shared.soak_load import run_load

SECONDS = np.arange(0, 1200, 2.0)


def wander(rng: np.random.Generator, step: float) -> np.ndarray:
    """Noise that hangs together for some twenty seconds, as memory does."""
    noise, level = np.empty(len(SECONDS)), 0.0
    for index in range(len(SECONDS)):
        level = 0.9 * level + step * rng.standard_normal()
        noise[index] = level
    return noise


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    found = slope(SECONDS, 100 + 12 * SECONDS / 3600)
    assert (found.value, found.low, found.high) == pytest.approx((12, 12, 12))


def test_intervals_hold_the_slope_mostly_although_samples_hang_together() -> None:
    rng = np.random.default_rng(0)
    found = [slope(SECONDS, 100 + 30 * SECONDS / 3600 + wander(rng, 0.5)) for _ in range(100)]
    held = sum(each.low <= 30 <= each.high for each in found)
    # About 91 for this noise; taking the samples for independent gives 30.
    assert held >= 80
    assert np.mean([each.value for each in found]) == pytest.approx(30, abs=2)


def test_growth_is_told_from_noise() -> None:
    rng = np.random.default_rng(1)
    assert slope(SECONDS, 100 + 30 * SECONDS / 3600 + wander(rng, 0.2)).low > 15
    flat = slope(SECONDS, 100 + wander(rng, 0.2))
    assert flat.low < 0 < flat.high


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="more than three times 60 seconds"):
        slope(SECONDS[:80], SECONDS[:80])


@pytest.mark.slow
def test_the_load_against_a_server(tmp_path: Path) -> None:
    sizes = {"max-model-len": 1024, "max-num-seqs": 32, "max-num-batched-tokens": 64, "num-gpu-blocks-override": 128}
    flags = ["demo", "--optimization-level=0", *(f"--{name}={value}" for name, value in sizes.items())]
    with RunningServer(flags, log=tmp_path / "log") as server:

        async def load() -> tuple[int, list[str]]:
            until = asyncio.get_running_loop().time() + 6
            tally = await run_load(server.base_url, server.port, workers=6, pause=0.02, seed=3, until=until)
            return tally.done.total(), list(tally.failed)

        sampler = MemorySampler(server.process.pid, "server")
        sampler.sample()
        done, failed = asyncio.run(load())
        sampler.sample()
        names = {series.name for series in sampler.lasting(5)}
    assert done > 20
    assert not failed
    assert {"server", "jaxllm.serving.ipc.engine_process"} <= names
