"""The whole step of an 8B model, compiled by the real TPU compiler for chips that are not there."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython
from tests.thinned import thinned

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")

STEPS = thinned(("1/32/64", "4/80/64"), ("4/32/512", "8/32/64"))
"""Devices, layers, tokens. `tests/benchmarks/test_tpu_steps.py` has a large step of eight devices."""
ROWS, VOCAB_BLOCKS = 64, 128256 // 128 + 8

Measured = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def measured(run_python: RunPython, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Figures by step."""
    return measure(run_python, tmp_path_factory.mktemp("llama"), *STEPS)


def measure(run_python: RunPython, folder: Path, *steps: str) -> Measured:
    """Figures by step, from a process that compiles them all."""
    script = str(Path(__file__).with_name("measure_tpu_step.py"))
    done = run_python(script, str(folder), "v6e:2x4", *steps, env={"PYTHONPATH": "."}, timeout=1500)
    assert done.returncode == 0, done.stderr
    return dict(zip(steps, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_the_cache_is_not_copied(measured: Measured, step: str) -> None:
    found = measured[step]
    assert found["attention"] == "tpu"
    assert found["aliased"] >= found["cache"]
    assert found["temporaries"] < 0.05 * found["arguments"]


def large_collectives(found: dict[str, Any]) -> list[list[str]]:
    """Kinds of those of whole hidden states, by computation; logits are exchanged by another kind."""
    hidden = found["tokens"] * 4096
    every = [
        [each["kind"] for each in some if each["elements"] >= hidden and each["kind"] != "all-to-all"]
        for some in found["collectives"].values()
    ]
    return sorted(filter(None, every))


@pytest.mark.parametrize("step", [step for step in STEPS if step[0] != "1" and not step.endswith("/512")])
def test_two_sums_per_layer(measured: Measured, step: str) -> None:
    # In the body of the scan over the layers, however many there are; and one for the embedding.
    assert large_collectives(measured[step]) == [["all-reduce"], ["all-reduce", "all-reduce"]]


@pytest.mark.exhaustive
def test_a_large_step_gathers_and_scatters_tokens(measured: Measured) -> None:
    found = large_collectives(measured["4/32/512"])
    # Twice per layer, and at the end. XLA makes a fusion of each sum where a device keeps only its part.
    assert [kinds for kinds in found if "all-gather" in kinds] == [["all-gather"], ["all-gather", "all-gather"]]
    fused = [name for name in measured["4/32/512"]["collectives"] if name.startswith("%all-reduce-scatter")]
    assert len(fused) == len(found) - 2 == 2


@pytest.mark.parametrize("step", [step for step in STEPS if step[0] != "1"])
def test_logits_travel_once(measured: Measured, step: str) -> None:
    hidden, devices = measured[step]["tokens"] * 4096, int(step[0])
    found = [each for collectives in measured[step]["collectives"].values() for each in collectives]
    exchanged = [each["elements"] for each in found if each["kind"] == "all-to-all"]
    # Devices exchange their parts for whole rows.
    assert len(exchanged) == 1
    assert exchanged[0] <= ROWS * VOCAB_BLOCKS * 128 // devices
    # The most otherwise is one number per block of the vocabulary, and one block of logits, for every row.
    others = {each["elements"] for each in found} - {hidden, hidden // devices, *exchanged}
    assert max(others) <= ROWS * VOCAB_BLOCKS


def test_one_device_needs_no_collectives(measured: Measured) -> None:
    assert measured["1/32/64"]["collectives"] == {}


@pytest.mark.exhaustive
def test_compile_time_does_not_depend_on_depth(measured: Measured, run_python: RunPython, tmp_path: Path) -> None:
    shallow, deep = measure(run_python, tmp_path, "4/8/64")["4/8/64"], measured["4/80/64"]
    assert deep["seconds"] < 1.3 * shallow["seconds"], (shallow, deep)
    assert deep["code"] < 1.1 * shallow["code"], (shallow, deep)


@pytest.mark.parametrize("step", STEPS)
def test_what_is_the_same_in_every_layer_is_made_once(measured: Measured, step: str) -> None:
    assert measured[step]["repeated"] == []


def test_queries_and_keys_lie_in_whole_registers(measured: Measured) -> None:
    # The tiles of the kernel's shapes have one or two rows: to rotate in them takes a tenth of a layer's time.
    assert measured["1/32/64"]["narrow"] == []
