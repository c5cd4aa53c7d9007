"""Tiers of an engine on several devices: copies have the pages of all of them."""

from pathlib import Path

import pytest

from tests.conftest import RunPython


@pytest.mark.parametrize("devices", [4, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_several_devices(run_python: RunPython, tmp_path: Path, devices: int) -> None:
    script = str(Path(__file__).with_name("tier_on_devices.py"))
    done = run_python(script, str(devices), str(tmp_path), devices=devices, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    hits, different, files, hits_of_files = map(int, done.stdout.split())
    assert hits >= 160
    assert different > 1
    assert files >= 16
    assert hits_of_files >= 160
