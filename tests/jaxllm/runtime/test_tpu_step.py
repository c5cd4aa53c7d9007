"""The whole step of an 8B model, compiled by the real TPU compiler for chips that are not there."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")
pytestmark = pytest.mark.slow

STEPS = ("1/32/64", "4/8/64", "4/32/64", "4/80/64", "4/32/512", "8/32/64")
"""Devices, layers, tokens."""
ROWS, VOCAB_BLOCKS = 64, 128256 // 128 + 8

Measured = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def measured(run_python: RunPython, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Figures by step."""
    script = str(Path(__file__).with_name("measure_tpu_step.py"))
    folder = str(tmp_path_factory.mktemp("llama"))
    done = run_python(script, folder, "v6e:2x4", *STEPS, env={"PYTHONPATH": "."}, timeout=1500)
    assert done.returncode == 0, done.stderr
    return dict(zip(STEPS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_the_cache_is_not_copied(measured: Measured, step: str) -> None:
    found = measured[step]
    assert found["attention"] == "tpu"
    assert found["aliased"] >= found["cache"]
    assert found["temporaries"] < 0.05 * found["arguments"]


@pytest.mark.parametrize("step", [step for step in STEPS if step[0] != "1"])
def test_two_sums_per_layer(measured: Measured, step: str) -> None:
    hidden = measured[step]["tokens"] * 4096
    large = {
        name: [each["kind"] for each in found if each["elements"] >= hidden]
        for name, found in measured[step]["collectives"].items()
    }
    # In the body of the scan over the layers; and one for the embedding.
    assert sorted(filter(None, large.values())) == [["all-reduce"], ["all-reduce", "all-reduce"]], large


@pytest.mark.parametrize("step", [step for step in STEPS if step[0] != "1"])
def test_logits_do_not_travel(measured: Measured, step: str) -> None:
    hidden = measured[step]["tokens"] * 4096
    sizes = [each["elements"] for found in measured[step]["collectives"].values() for each in found]
    # The most is one number per block of the vocabulary, and one block of logits, for every row.
    assert max(size for size in sizes if size != hidden) <= ROWS * VOCAB_BLOCKS


def test_one_device_needs_no_collectives(measured: Measured) -> None:
    assert measured["1/32/64"]["collectives"] == {}


def test_compile_time_does_not_depend_on_depth(measured: Measured) -> None:
    shallow, *deeper = (measured[step] for step in ("4/8/64", "4/32/64", "4/80/64"))
    for deep in deeper:
        assert deep["seconds"] < 1.3 * shallow["seconds"], measured
        assert deep["code"] < 1.1 * shallow["code"], measured


@pytest.mark.parametrize("step", STEPS)
def test_what_is_the_same_in_every_layer_is_made_once(measured: Measured, step: str) -> None:
    assert measured[step]["repeated"] == []


def test_queries_and_keys_lie_in_whole_registers(measured: Measured) -> None:
    # The tiles of the kernel's shapes have one or two rows: to rotate in them takes a tenth of a layer's time.
    assert measured["1/32/64"]["narrow"] == []
