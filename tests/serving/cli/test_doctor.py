import json
from pathlib import Path

import msgspec
import pytest

from jaxllm.doctor.result import Report
from jaxllm.doctor.stages import STAGES
from jaxllm.serving.cli.main import main
from tests.conftest import RunPython
from tests.thinned import EVERY_CASE

QUICK = ("system", "devices", "speed", "copies", "all_reduce")


def test_json_of_the_stages_that_are_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = [flag for name in QUICK for flag in ("--stage", name)]
    path = tmp_path / "report.json"
    assert main(["doctor", "--json", "--report", str(path), *flags]) == 0
    captured = capsys.readouterr()
    report = msgspec.json.decode(captured.out, type=Report)
    assert [(stage.name, stage.status) for stage in report.stages] == [(name, "ok") for name in QUICK]
    assert msgspec.json.decode(path.read_bytes(), type=Report) == report
    figures = {stage.name: stage.figures for stage in report.stages}
    assert len(figures["devices"]["devices"]) == 8
    assert figures["speed"]["bfloat16_flops"] > 0
    assert all(figures["copies"][f"{way}_bytes_per_s"] > 0 for way in ("to_host", "to_device", "to_file", "from_file"))
    assert figures["all_reduce"]["devices"] == 8
    assert "devices: starting JAX" in captured.err


def test_text_and_exit_code_of_a_broken_backend(run_python: RunPython) -> None:
    environment = {"JAX_PLATFORMS": "no_such_platform"}
    arguments = ("-m", "jaxllm", "doctor", "--stage", "devices", "--stage", "greedy")
    result = run_python(*arguments, env=environment)
    assert result.returncode == 1
    assert "no_such_platform" in result.stdout
    assert "skipped greedy" in result.stdout
    assert "failed: devices; skipped: greedy" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--stage", "nothing"], "invalid choice: 'nothing'"),
        (["--timeout", "0"], "must be greater than 0"),
        (["--stage", "system", "--report", "/nowhere/report.json"], "No such file"),
    ],
)
def test_wrong_flags(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["doctor", *flags])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_model_passes_on_two_virtual_devices(run_python: RunPython) -> None:
    """Those that the test above leaves out; `tests/jaxllm/doctor/test_comparisons.py` compares attention."""
    environment = {"JAX_NUM_CPU_DEVICES": "2"}
    names = [stage.name for stage in STAGES if EVERY_CASE or stage.name not in (*QUICK, "attention")]
    flags = [flag for name in names for flag in ("--stage", name)]
    result = run_python("-m", "jaxllm", "doctor", "--json", "--timeout", "300", *flags, env=environment, timeout=1500)
    report = json.loads(result.stdout)
    found = {stage["name"]: stage["status"] for stage in report["stages"]}
    assert result.returncode == 0, report
    expected = dict.fromkeys(names, "ok")
    # The demo model sees nothing.
    assert found == {**expected, "attention_checks": "skipped", "tower": "skipped"}
