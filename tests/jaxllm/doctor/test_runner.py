"""Stages in processes of their own: those that hang or crash are ended, named, and do not stop the others."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from jaxllm.doctor.result import Report, Settings, StageReport, ending
from jaxllm.doctor.runner import environment, named, run_doctor, run_stage, write_report
from jaxllm.doctor.stages import STAGES, Stage
from jaxllm.doctor.text import stage_lines, verdict
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def finds_broken_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def broken(name: str, *, stage: str | None = None, needs_devices: bool = True) -> Stage:
    return Stage(stage or name, f"tests.jaxllm.doctor.broken.{name}", "look at the device", needs_devices)


def run_one(name: str, tmp_path: Path, seconds: float = 60) -> tuple[StageReport, list[str]]:
    said: list[str] = []
    settings = Settings(seconds=seconds, scratch=str(tmp_path))
    report = run_stage(broken(name), settings, lambda _, news: said.append(str(news)))
    return report, said


def test_a_stage_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    begin = time.monotonic()
    report, said = run_one("hangs", tmp_path, seconds=4)
    assert time.monotonic() - begin < 30
    assert report.status == "failed"
    assert report.summary == ("did not end within 4 s during: waiting for a device that never answers")
    assert report.doing == said[-1] == "waiting for a device that never answers"
    assert report.advice == "look at the device"
    # What it started is ended as well: it might hold the device. A zombie has no command line.
    pid = (tmp_path / "pid").read_text()
    command = Path(f"/proc/{pid}/cmdline")
    end = time.monotonic() + 10
    while command.exists() and command.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stage_that_crashes_names_its_signal(tmp_path: Path) -> None:
    report, _ = run_one("crashes", tmp_path)
    assert report.status == "failed"
    assert report.summary == "was ended by SIGSEGV during: compiling for the device"
    assert report.advice == "look at the device"


def test_an_exception_is_the_summary_and_its_traceback_the_log(tmp_path: Path) -> None:
    report, _ = run_one("raises", tmp_path)
    assert report.status == "failed"
    assert report.summary == "RuntimeError: RESOURCE_EXHAUSTED: out of memory with demo"
    assert any("raises.py" in line for line in report.log)


def test_an_error_that_says_what_to_do_needs_no_traceback(tmp_path: Path) -> None:
    report, _ = run_one("misconfigured", tmp_path)
    assert report.status == "failed"
    assert report.summary == "model 'demo': no such folder"
    assert report.log == []


def test_what_libraries_print_is_not_taken_for_a_result(tmp_path: Path) -> None:
    report, said = run_one("talks", tmp_path, seconds=50)
    assert (report.status, report.summary, said) == ("ok", "well", ["something"])
    assert report.figures == {"seconds": 50, "platforms": "cpu"}


def test_the_others_go_on(tmp_path: Path) -> None:
    stages = (broken("crashes"), broken("talks"))
    heard: list[str] = []
    report = run_doctor("1.0", Settings(seconds=60), stages, lambda name, _: heard.append(name))
    assert [stage.status for stage in report.stages] == ["failed", "ok"]
    assert not report.ok
    assert set(heard) == {"crashes", "talks"}
    assert "failed: crashes" in verdict(report)
    path = tmp_path / "report.json"
    write_report(report, path)
    assert msgspec.json.decode(path.read_bytes(), type=Report) == report


def test_without_devices_what_needs_them_is_skipped() -> None:
    stages = (broken("crashes", stage="devices", needs_devices=False), broken("hangs"))
    report = run_doctor("1.0", Settings(seconds=60), stages, lambda *_: None)
    assert [(stage.name, stage.status) for stage in report.stages] == [("devices", "failed"), ("hangs", "skipped")]


@pytest.mark.parametrize(
    ("given", "platforms"), [({}, None), ({"JAX_PLATFORMS": "cuda"}, "cuda,cpu"), ({"JAX_PLATFORMS": "cpu"}, "cpu")]
)
def test_stages_have_a_cpu_beside_the_accelerator(given: dict[str, str], platforms: str | None) -> None:
    found = environment(given)
    assert found.get("JAX_PLATFORMS") == platforms
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_the_users_own_variables_stay() -> None:
    assert environment({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"})["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def test_names_choose_stages() -> None:
    assert named(()) == STAGES
    assert [stage.name for stage in named(("speed", "system"))] == ["system", "speed"]


@pytest.mark.parametrize(
    ("code", "text"), [(3, "ended with exit code 3"), (-9, "was ended by SIGKILL"), (-77, "was ended by signal 77")]
)
def test_endings(code: int, text: str) -> None:
    assert ending(code) == text


def test_text_has_one_line_for_what_is_well_and_advice_below_what_is_not() -> None:
    well = list(stage_lines(StageReport("speed", "ok", 1.25, "fast", log=["noise"])))
    assert well == ["ok      speed               1.2 s  fast"]
    ill = list(stage_lines(StageReport("speed", "failed", 1.0, "no", "restart", log=["first", "last"])))
    assert [line.strip() for line in ill[1:]] == ["-> restart", "|  first", "|  last"]
