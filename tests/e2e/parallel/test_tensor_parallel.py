"""The same tokens on any number of devices; each holds only its part."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython
from tests.e2e.parallel.test_hosts import run_together
from tests.thinned import thinned

SCRIPT = str(Path(__file__).with_name("generate_on_devices.py"))

Runs = dict[str, dict[str, Any]]


def run(run_python: RunPython, *devices: str) -> Runs:
    """Results by number or mesh of devices."""
    done = run_python(SCRIPT, *map(str, devices), env={"PYTHONPATH": "."}, timeout=900)
    assert done.returncode == 0, done.stderr
    return {result["devices"]: result for result in map(json.loads, done.stdout.splitlines())}


def check(runs: Runs, devices: str, *, shards: int = 1, share: float) -> None:
    """Compare with one device, where some requests are preempted and some prompts cached."""
    one, many = runs["1"], runs[devices]
    assert min(one["preemptions"], many["preemptions"]) > 0
    assert min(one["prefix_hits"], many["prefix_hits"]) > 0
    assert many["preempted"] == one["preempted"]
    assert many["cached"] == one["preempted"][1::2]
    assert many["synchronous"] == one["synchronous"] == one["preempted"][::2]
    for ours, theirs in zip(many["logprobs"], one["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
    assert many["beams"] == one["beams"]
    assert many["compilations"] == 0
    assert set(many["shares"]) == {share}, "a device holds more than its part"
    assert set(many["kept_shares"]) == {share / shards}, "a device holds more than its part"


MESHES: dict[str, Any] = dict(
    thinned(
        [
            # The demo model has 8 query heads and 4 KV heads: on 8 devices these are there twice.
            ("8", {"share": 1 / 8}),
            ("data=2,model=2", {"share": 1 / 2, "shards": 2}),
        ],
        # CI has stages in `jaxllm/executor/pipeline/test_stages.py` and `e2e/text/test_sleep_and_weights.py`.
        [
            ("stages=2,model=2", {"share": 1 / 2}),
            ("2", {"share": 1 / 2}),
            ("4", {"share": 1 / 4}),
            ("stages=2", {"share": 1}),
            ("stages=4", {"share": 1}),
        ],
    )
)


@pytest.fixture(scope="module")
def runs(run_python: RunPython) -> Runs:
    """All of them, in one process, and the one that they are compared with."""
    return run(run_python, "1", *MESHES)


@pytest.mark.slow
@pytest.mark.parametrize("devices", MESHES)
def test_many_devices(runs: Runs, devices: str) -> None:
    check(runs, devices, **MESHES[devices])


def test_two_processes_of_two_devices_have_the_tokens_of_one(runs: Runs) -> None:
    """Preempted, with cached prefixes, synchronously, with grammars, penalties, log-probabilities and beams."""
    many, one = run_together(2, 4), runs["1"]
    assert min(one["preemptions"], many["preemptions"]) > 0
    assert min(one["prefix_hits"], many["prefix_hits"]) > 0
    assert many["preempted"] == many["synchronous"] == one["preempted"][::2]
    assert many["beams"] == one["beams"]
    for ours, theirs in zip(many["logprobs"], one["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
    assert many["compilations"] == 0
    assert set(many["shares"]) == {1 / 4}, "a device holds more than its part"


@pytest.mark.exhaustive
def test_cache_in_8_bits(run_python: RunPython) -> None:
    """CI has such caches in `test_data_shards.py`, where a shard has two devices.

    Numbers that are rounded otherwise differ by a step of 1 in 254; tokens are the same.
    """
    shares = {"4": 1 / 4, "2": 1 / 2}
    runs = run(run_python, "--kv", "int8", "--few", "1", *shares)
    one = runs["1"]
    for devices, share in shares.items():
        many = runs[devices]
        assert min(one["preemptions"], many["preemptions"]) > 0
        assert many["preempted"] == many["synchronous"] == one["preempted"]
        assert many["beams"] == one["beams"]
        assert set(many["kept_shares"]) == {share}
        for ours, theirs in zip(many["logprobs"], one["logprobs"], strict=True):
            assert ours == pytest.approx(theirs, abs=5e-2)
