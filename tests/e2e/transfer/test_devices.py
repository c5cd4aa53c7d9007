"""Pages of engines with other numbers of devices: heads are divided again on the host."""

from pathlib import Path

import pytest

from tests.conftest import RunPython


@pytest.mark.parametrize("pairs", [("1-2",), pytest.param(("2-1", "1-8", "8-2"), marks=pytest.mark.exhaustive)])
def test_other_numbers_of_devices(run_python: RunPython, pairs: tuple[str, ...]) -> None:
    script = str(Path(__file__).with_name("across_devices.py"))
    done = run_python(script, *pairs, devices=8, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    assert [int(tokens) for tokens in done.stdout.split()] == [3 * 96] * len(pairs)
