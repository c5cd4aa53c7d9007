"""The host tier of an engine on several devices: copies have the pages of all of them."""

from pathlib import Path

from tests.conftest import RunPython


def test_two_devices(run_python: RunPython) -> None:
    script = str(Path(__file__).with_name("tier_on_devices.py"))
    done = run_python(script, devices=2, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    hits, different = map(int, done.stdout.split())
    assert hits >= 160
    assert different > 1
