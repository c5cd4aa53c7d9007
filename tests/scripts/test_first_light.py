"""The runner of `scripts/first_light`: what it skips, what it ends, and the one file that it makes."""

import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from scripts import first_light
from scripts.first_light import Part, command_of, missing_packages, parts, run_part, why_not
from tests.conftest import ROOT


def part(code: str, seconds: float = 60, **settings: Any) -> Part:
    return Part("some", "something", (sys.executable, "-c", code), seconds, **settings)


def write_doctor(folder: Path, backend: str, memory: int | None = None) -> None:
    figures = {"backend": backend, "devices": [{"memory_bytes": memory}]}
    report = {"stages": [{"name": "system", "figures": {}}, {"name": "devices", "figures": figures}]}
    (folder / "doctor.json").write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("code", "status", "last"),
    [("print('a'); print('b')", "ok", "b"), ("raise SystemExit('broken')", "failed", "broken")],
)
def test_status_and_last_line(code: str, status: str, last: str, tmp_path: Path) -> None:
    result = run_part(part(code), tmp_path, 1000)
    assert (result.status, result.last_line, result.log) == (status, last, "some.log")


def test_a_part_that_hangs_is_ended(tmp_path: Path) -> None:
    begin = time.monotonic()
    result = run_part(part("print('begun', flush=True); import time; time.sleep(600)", 3), tmp_path, 1000)
    assert (result.status, result.last_line) == ("timed out", "begun")
    assert time.monotonic() - begin < 30


def test_what_is_not_for_this_machine_is_skipped(tmp_path: Path) -> None:
    for_gpu = part("", platforms=("gpu",), least_bytes=100)
    assert why_not(for_gpu, tmp_path, 1000) == "the doctor found no working device, or was not run"
    assert why_not(part(""), tmp_path, 1000) is None
    write_doctor(tmp_path, "cpu")
    assert why_not(for_gpu, tmp_path, 1000) == "does not apply to cpu"
    write_doctor(tmp_path, "gpu", 99)
    assert "GiB on a device" in str(why_not(for_gpu, tmp_path, 1000))
    write_doctor(tmp_path, "gpu", 100)
    assert why_not(for_gpu, tmp_path, 1000) is None
    assert "no time left" in str(why_not(for_gpu, tmp_path, 5))
    assert why_not(part("", needs=("no-such-package",)), tmp_path, 1000) == "pip install no-such-package"


@pytest.mark.parametrize(("backend", "more"), [("gpu", ["-n"]), ("tpu", []), ("cpu", [])])
def test_several_processes_share_only_gpus(backend: str, more: list[str], tmp_path: Path) -> None:
    write_doctor(tmp_path, backend, 100)
    tests = part("", in_parallel=("-n",))
    assert list(command_of(tests, tmp_path)[len(tests.command) :]) == more


def test_missing_packages_are_named() -> None:
    project = {"project": {"dependencies": ["jax>=0.10", "nowhere>=1", "uvloop>=0.22; sys_platform != 'win32'"]}}
    assert missing_packages(project) == ["nowhere>=1"]


def test_one_file_to_send_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(first_light, "parts", lambda _: (part("print('well')"), part("raise SystemExit(3)")))
    assert first_light.main(["--out", str(tmp_path)]) == 1
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {Path(name).name for name in files.getnames()}
        report = files.extractfile(f"{archive.name.removesuffix('.tar.gz')}/report.json")
        assert report is not None
        found = json.load(report)
    assert {"report.json", "report.txt", "some.log"} <= names
    assert [each["status"] for each in found["parts"]] == ["ok", "failed"]


def test_parts_name_what_there_is() -> None:
    for each in parts(Path()):
        module = each.command[2]
        assert module in ("jaxllm", "pytest") or (ROOT / f"{module.replace('.', '/')}.py").exists()
