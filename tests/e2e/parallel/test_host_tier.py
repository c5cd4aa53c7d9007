"""Tiers of an engine on several devices: copies have the pages of all of them."""

from pathlib import Path

import pytest

from tests.conftest import RunPython


@pytest.mark.parametrize(
    ("tensor", "pipeline"),
    [(2, 2), *(pytest.param(*sizes, marks=pytest.mark.exhaustive) for sizes in ((4, 1), (1, 2)))],
)
def test_several_devices(run_python: RunPython, tmp_path: Path, tensor: int, pipeline: int) -> None:
    """In stages, each keeps the pages of its own layers."""
    script = str(Path(__file__).with_name("tier_on_devices.py"))
    options = (str(tensor), str(pipeline), str(tmp_path))
    done = run_python(script, *options, devices=tensor * pipeline, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    hits, different, files, hits_of_files = map(int, done.stdout.split())
    assert hits >= 160
    assert different > 1
    assert files >= 16
    assert hits_of_files >= 160
