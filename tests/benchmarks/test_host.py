"""The benchmark of the host runs the real engine, and its clock adds up. What it measures is not tested."""

import json
from typing import Any

import pytest

from benchmarks import host
from benchmarks.shared.stand_in_device import Clock


def rows(capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    host.main(["--running", "3", "--context", "40", "--steps", "20", "--json", *flags])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_a_slow_device_never_waits_and_a_fast_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """A device step of ten seconds, which nobody waits for, is longer than any host takes."""
    slow, fast = rows(capsys, "--processor-time", "--step-ms", "10000", "0")
    assert slow["gap_p99_us"] == 0
    assert slow["tokens_per_s"] == pytest.approx(3 / 10, rel=0.1)
    assert fast["gap_us"] > 0
    (waiting,) = rows(capsys, "--processor-time", "--step-ms", "10000", "--no-async-scheduling")
    assert waiting["gap_us"] > 0
    assert (slow["async"], waiting["async"]) == (True, False)


def test_the_clock_of_real_time() -> None:
    clock = Clock(0.01)
    first, second = clock.start(), clock.start()
    assert second == pytest.approx(first + 0.01)
    clock.wait_until(second)
    assert clock.now() >= second
    assert clock.gaps[1] == 0
