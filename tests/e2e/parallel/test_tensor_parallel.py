"""The same tokens on any number of devices, each of which holds its part only."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython

SCRIPT = str(Path(__file__).with_name("generate_on_devices.py"))

Runs = dict[int, dict[str, Any]]


def run(run_python: RunPython, *devices: int) -> Runs:
    """Results by number of devices."""
    done = run_python(SCRIPT, *map(str, devices), env={"PYTHONPATH": "."}, timeout=900)
    assert done.returncode == 0, done.stderr
    return {result["devices"]: result for result in map(json.loads, done.stdout.splitlines())}


def check(runs: Runs, devices: int) -> None:
    """Compare with one device, where some requests are preempted and some prompts cached."""
    one, many = runs[1], runs[devices]
    assert min(one["preemptions"], many["preemptions"]) > 0
    assert min(one["prefix_hits"], many["prefix_hits"]) > 0
    assert many["preempted"] == one["preempted"]
    assert many["cached"] == one["preempted"]
    assert many["synchronous"] == one["synchronous"] == one["preempted"]
    for ours, theirs in zip(many["logprobs"], one["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
    assert many["compilations"] == 0
    assert set(many["shares"]) == {1 / devices}, "a device holds more than its part"


def test_two_devices(run_python: RunPython) -> None:
    check(run(run_python, 1, 2), 2)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4, 8])
def test_many_devices(run_python: RunPython, devices: int) -> None:
    """The demo model has 8 query heads and 4 KV heads: on 8 devices these are there twice."""
    check(run(run_python, 1, devices), devices)
