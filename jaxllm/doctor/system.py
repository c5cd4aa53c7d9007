"""Stage `system`: versions, drivers, and who holds the accelerator. Reads files, and never starts JAX."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import psutil

from jaxllm.doctor import nvidia
from jaxllm.doctor.result import Context, Outcome
from jaxllm.executor.device_holders import Holder, LockFile, device_files, hidden_processes, holders, lock_files

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
PACKAGES = (
    "jaxllm", "jax", "jaxlib", "libtpu", *PLUGINS, "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13", "flax", "numpy", "numba",
)  # fmt: skip
VARIABLES = ("CUDA_", "JAX_", "LD_LIBRARY_PATH", "LIBTPU_", "NCCL_", "NVIDIA_", "TPU_", "XLA_")
"""Beginnings of the names of variables that change how devices work."""


def run(context: Context) -> Outcome:
    """Look around."""
    packages = {name: found for name in PACKAGES if (found := _version(name)) is not None}
    files = device_files()
    context.say("running nvidia-smi")
    try:
        gpus, smi = nvidia.gpus(), ""
    except subprocess.TimeoutExpired:
        gpus, smi = [], "nvidia-smi hangs, so the driver does not respond: restart the machine"
    context.say("finding processes that hold the accelerator")
    held, locks = holders(files), lock_files()
    driver = gpus[0]["driver"] if gpus else nvidia.driver_version()
    troubles = [smi, *_driver_troubles(driver, packages), *_version_troubles(packages), *_file_troubles(files)]
    status, notes = _availability(held, locks, files)
    problems = list(filter(None, troubles))
    figures = {
        "python": platform.python_version(),
        "os": platform.platform(),
        "packages": packages,
        "device_files": files,
        "holders": msgspec.to_builtins(held),
        "lock_files": msgspec.to_builtins(locks),
        "sees_all_processes": not hidden_processes(),
        "nvidia_driver": driver,
        "gpus": gpus,
        "environment": {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
    }
    advice = "; ".join([*problems, *notes]) or None
    return Outcome(_summary(figures), figures, "failed" if problems else status, advice)


def _summary(figures: Mapping[str, Any]) -> str:
    packages, files = figures["packages"], figures["device_files"]
    parts = [f"Python {figures['python']}", f"jax {packages.get('jax', 'missing')}"]
    parts += [f"{name} {packages[name]}" for name in ("libtpu", *PLUGINS) if name in packages]
    parts += [f"driver {figures['nvidia_driver']}"] if figures["nvidia_driver"] else []
    parts += [gpu["name"] for gpu in figures["gpus"]]
    parts.append(f"{len(files)} accelerator files" if files else "no accelerator files")
    if files:
        parts.append(f"held by {_names(figures['holders'])}" if figures["holders"] else "held by no visible process")
    return ", ".join(parts)


def _names(held: list[dict[str, Any]]) -> str:
    return ", ".join(f"process {holder['pid']} ({holder['user']}: {holder['command']})" for holder in held)


def _availability(held: list[Holder], locks: list[LockFile], files: list[str]) -> tuple[Any, list[str]]:
    """The status, and what to do, where others hold the device or a lock is left."""
    has_tpu = any("nvidia" not in file and not file.endswith("dxg") for file in files)
    if held:
        pids = " ".join(str(holder.pid) for holder in held)
        if has_tpu:
            return "failed", [
                f"the TPU serves one process at a time and is in use: end the process first (kill {pids})"
            ]
        return "slow", [f"the GPU is shared with processes {pids}, which affects memory and times below"]
    if locks and has_tpu:
        mine = "rm" if all(lock.is_mine for lock in locks) else "sudo rm"
        paths = " ".join(lock.path for lock in locks)
        return "ok", [f"if JAX reports that the TPU is in use: a stale lock remains ({mine} {paths})"]
    return "ok", []


def _driver_troubles(driver: str | None, packages: Mapping[str, str]) -> Iterator[str | None]:
    plugins = [name for name in PLUGINS if name in packages]
    if driver is None:
        if nvidia.find_pci_gpus():
            yield "this machine has an NVIDIA GPU, but no driver is loaded: install one (CUDA 13 needs 580 or newer)"
        return
    if not plugins:
        yield "JAX has no plugin for the GPU: pip install 'jax[cuda13]' (with a driver below 580: 'jax[cuda12]')"
    yield from (
        nvidia.driver_problem(driver, name.removeprefix("jax-cuda").removesuffix("-plugin")) for name in plugins
    )


def _version_troubles(packages: Mapping[str, str]) -> Iterator[str]:
    """JAX and what it loads belong together: the first two numbers must be equal."""
    wanted = packages.get("jax", "")
    for name in ("jaxlib", *PLUGINS):
        if name in packages and packages[name].split(".")[:2] != wanted.split(".")[:2]:
            yield f"{name} {packages[name]} does not match jax {wanted}: pip install -U jax {name}"


def _file_troubles(files: list[str]) -> Iterator[str]:
    closed = [file for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        yield f"this user may not open {', '.join(closed)}: run as another user, or change the permissions"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
