"""The GPUs according to NVIDIA's driver, without CUDA: `nvidia-smi`, `/proc` and the PCI bus."""

import re
import subprocess
from pathlib import Path
from typing import Any

LEAST_DRIVERS = {"12": 525, "13": 580}
"""By CUDA's major version, the first driver that runs it (NVIDIA, "CUDA Compatibility")."""

_FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "compute_capability": "compute_cap",
    "memory_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "utilization_percent": "utilization.gpu",
    "power_limit_w": "power.limit",
}


def gpus(seconds: float = 20) -> list[dict[str, Any]]:
    """One dictionary for each GPU, empty without `nvidia-smi`. Raises `subprocess.TimeoutExpired` when that hangs."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=seconds, check=False)
    except OSError:
        return []
    if done.returncode:
        return []
    rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip())
    return [dict(zip(_FIELDS, row, strict=True)) for row in rows if len(row) == len(_FIELDS)]


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the kernel module, from `/proc`; None where it is not loaded."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", proc.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found.group() if found else None


def find_pci_gpus(root: Path = Path("/sys/bus/pci/devices")) -> int:
    """GPUs of NVIDIA on the PCI bus, whether there is a driver or not."""
    return sum(
        _read(device / "vendor") == "0x10de" and _read(device / "class").startswith("0x03") for device in root.glob("*")
    )


def driver_problem(driver: str, cuda: str) -> str | None:
    """Why `driver` does not run plugins of this major version of CUDA, and what to do; None if it does."""
    least = LEAST_DRIVERS.get(cuda)
    if least is None or int(driver.partition(".")[0]) >= least:
        return None
    return f"driver {driver} is too old for CUDA {cuda}, which needs {least} or newer: update the driver" + (
        ", or pip install 'jax[cuda12]'" if cuda == "13" else ""
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
