"""Who holds the device, what the driver says, and what follows from it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxllm.doctor import nvidia, system
from jaxllm.doctor.result import Context, Outcome, Settings
from jaxllm.executor.device_holders import Holder, LockFile, device_files, holders, lock_files

SMI = """#!/bin/sh
echo 'NVIDIA H100 80GB HBM3, 580.159.04, 9.0, 81559, 4, 0, 700.00'
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The machine that `system` finds, for tests to change; at first it has no accelerators."""
    found: dict[str, Any] = {"files": [], "held": [], "locks": [], "gpus": [], "driver": None, "bus": 0, "versions": {}}
    monkeypatch.setattr(system, "device_files", lambda: found["files"])
    monkeypatch.setattr(system, "holders", lambda _: found["held"])
    monkeypatch.setattr(system, "lock_files", lambda: found["locks"])
    monkeypatch.setattr(nvidia, "gpus", lambda: found["gpus"])
    monkeypatch.setattr(nvidia, "driver_version", lambda: found["driver"])
    monkeypatch.setattr(nvidia, "find_pci_gpus", lambda: found["bus"])

    def version(name: str) -> str | None:
        known: dict[str, str] = found["versions"]
        return known.get(name)

    monkeypatch.setattr(system, "_version", version)
    return found


def look() -> Outcome:
    return system.run(Context(Settings(), lambda _: None))


def test_nothing_there_is_well(machine: dict[str, Any]) -> None:
    outcome = look()
    assert (outcome.status, outcome.advice) == ("ok", None)
    assert "no accelerator files" in outcome.summary


def test_a_busy_tpu_is_named(machine: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    machine["files"] = [str(file)]
    machine["held"] = [Holder(4711, "kim", "python train.py", [str(file)])]
    outcome = look()
    assert outcome.status == "failed"
    assert "process 4711 (kim: python train.py)" in outcome.summary
    assert "kill 4711" in str(outcome.advice)
    assert outcome.figures["holders"][0]["pid"] == 4711


def test_a_shared_gpu_is_slow(machine: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "nvidia0"
    file.touch()
    machine.update(files=[str(file)], held=[Holder(5, "kim", "python", [str(file)])], driver="580.1")
    machine["versions"] = {"jax": "0.11.0", "jaxlib": "0.11.0", "jax-cuda13-plugin": "0.11.0"}
    assert look().status == "slow"


def test_a_lock_that_was_left_behind(machine: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    machine.update(files=[str(file)], locks=[LockFile("/tmp/libtpu_lockfile", "root", is_mine=False)])
    outcome = look()
    assert outcome.status == "ok"
    assert "sudo rm /tmp/libtpu_lockfile" in str(outcome.advice)


@pytest.mark.parametrize(
    ("driver", "versions", "says"),
    [
        ("580.1", {"jax": "0.11.0"}, "pip install 'jax[cuda13]'"),
        ("570.2", {"jax": "0.11.0", "jax-cuda13-plugin": "0.11.0"}, "is too old for CUDA 13"),
        ("580.1", {"jax": "0.11.0", "jaxlib": "0.10.2", "jax-cuda13-plugin": "0.11.0"}, "jaxlib 0.10.2 does not"),
        (None, {"jax": "0.11.0"}, "no driver is loaded"),
    ],
)
def test_drivers_and_versions(machine: dict[str, Any], driver: str | None, versions: dict[str, str], says: str) -> None:
    machine.update(driver=driver, versions=versions, bus=1)
    outcome = look()
    assert outcome.status == "failed"
    assert says in str(outcome.advice)


def test_a_matching_gpu_is_well(machine: dict[str, Any]) -> None:
    machine.update(driver="580.1", bus=1)
    machine["versions"] = {"jax": "0.11.2", "jaxlib": "0.11.1", "jax-cuda13-plugin": "0.11.1"}
    assert look().status == "ok"


def test_a_hanging_nvidia_smi_is_named(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> list[dict[str, Any]]:
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr(nvidia, "gpus", hang)
    assert "nvidia-smi hangs" in str(look().advice)


def test_processes_with_the_file_open_are_found(tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    code = f"import sys; held = open({str(file)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = holders([str(file)])
        process.kill()
    assert [(holder.pid, holder.files) for holder in found] == [(process.pid, [str(file)])]
    assert found[0].command.startswith(sys.executable)


def test_this_process_is_no_holder(tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    with file.open("w"):
        assert holders([str(file)]) == []


def test_device_and_lock_files(tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    for name in ("accel0", "accelerate", "nvidia1", "nvidiactl", "vfio/3", "vfio/vfio", "libtpu_lockfile"):
        (tmp_path / name).touch()
    assert device_files(tmp_path) == [str(tmp_path / name) for name in ("accel0", "nvidia1", "vfio/3")]
    (lock,) = lock_files(tmp_path)
    assert lock.path == str(tmp_path / "libtpu_lockfile")


def test_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(SMI)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (gpu,) = nvidia.gpus()
    assert (gpu["name"], gpu["driver"], gpu["memory_mib"]) == ("NVIDIA H100 80GB HBM3", "580.159.04", "81559")


def test_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert nvidia.gpus() == []


def test_the_kernel_modules_version(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC 13.3.0\n")
    assert nvidia.driver_version(path) == "580.159.04"
    assert nvidia.driver_version(tmp_path / "none") is None


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    for index, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000")]):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(index) / "class").write_text(f"{kind}\n")
    assert nvidia.find_pci_gpus(tmp_path) == 1
