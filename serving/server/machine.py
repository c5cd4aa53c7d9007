"""The machine that this process runs on, as a bug report names it. Never starts JAX."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = (
    "jaxllm",
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda13-plugin",
    "flax",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "safetensors",
    "msgspec",
    "numpy",
)
_VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE")


def machine() -> dict[str, Any]:
    """Versions, processor, memory, folders and variables; sizes are in bytes."""
    memory = psutil.virtual_memory()
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "os": _os_name(),
        "kernel": platform.platform(),
        "cpu": {
            "name": _cpu_name(),
            "usable_cores": _usable_cores(),
            "physical_cores": psutil.cpu_count(logical=False),
        },
        "memory": {"total_bytes": memory.total, "available_bytes": memory.available},
        "packages": {name: _version(name) for name in _PACKAGES},
        "caches": _caches(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _usable_cores() -> int | None:
    """Cores this process may run on, which a container or taskset may have narrowed."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _caches() -> dict[str, str]:
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    return {"hugging_face": str(Path(hub).expanduser()), "compilation": str(Path("~/.cache/jaxllm/xla").expanduser())}
