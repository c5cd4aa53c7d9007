"""The scanned model compiled by the real TPU compiler, for a chip that is not there."""

import json
from pathlib import Path

import pytest

from tests.conftest import RunPython

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")
pytestmark = pytest.mark.slow

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Tests that compile for TPUs may run side by side: none of them touches a device.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@pytest.fixture(scope="module")
def measured(run_python: RunPython) -> list[dict[str, float]]:
    """Figures for 8 and 32 layers."""
    script = str(Path(__file__).with_name("measure_tpu_compile.py"))
    result = run_python(script, "8", "32", env={**ENVIRONMENT, "PYTHONPATH": "."}, timeout=600)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_compile_time_does_not_depend_on_depth(measured: list[dict[str, float]]) -> None:
    shallow, deep = measured
    assert deep["seconds"] < 1.5 * shallow["seconds"], measured
    assert deep["code"] < 1.2 * shallow["code"], measured


def test_the_cache_is_donated(measured: list[dict[str, float]]) -> None:
    assert all(each["aliased"] >= each["cache"] for each in measured), measured


def test_the_cache_is_not_copied(measured: list[dict[str, float]]) -> None:
    assert all(each["temporaries"] < each["cache"] / each["layers"] for each in measured), measured
