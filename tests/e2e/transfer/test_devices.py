"""Pages of engines with other numbers of devices: heads and stages are divided again on the host."""

from pathlib import Path

import pytest
import torch

from tests.conftest import RunPython
from tests.e2e.test_host_tier import recurrent


@pytest.mark.parametrize("pairs", [("1-2x2",), pytest.param(("2-1", "1-8", "8-1x2"), marks=pytest.mark.exhaustive)])
def test_other_numbers_of_devices(run_python: RunPython, pairs: tuple[str, ...]) -> None:
    script = str(Path(__file__).with_name("across_devices.py"))
    done = run_python(script, "demo", *pairs, devices=8, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    assert [int(tokens) for tokens in done.stdout.split()] == [3 * 96] * len(pairs)


# CI has states in `test_apart.py`.
@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", ["1-2", "2-1"])
def test_states_of_other_numbers_of_devices(run_python: RunPython, tmp_path: Path, pair: str) -> None:
    torch.manual_seed(0)
    recurrent(tmp_path / "model")
    script = str(Path(__file__).with_name("across_devices.py"))
    done = run_python(script, str(tmp_path / "model"), pair, devices=2, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    assert [int(tokens) for tokens in done.stdout.split()] == [3 * 96]
