"""`jaxllm collect-env`: what a bug report needs."""

import argparse
import json
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from jaxllm.flags import FlagParser

HELP = "Print what a bug report needs: versions, devices, memory, caches."

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


def add_arguments(parser: FlagParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text; sizes are in bytes.")


def run(args: argparse.Namespace) -> int:
    """Print the report on stdout."""
    report = collect()
    print(json.dumps(report, indent=2, ensure_ascii=False) if args.json else "\n".join(_as_text(report)))
    return 0


def collect() -> dict[str, Any]:
    """The report, sizes in bytes. A backend that does not start is part of the report, not an error."""
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
        "jax": _backend(),
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


def _backend() -> dict[str, Any]:
    """The default backend and its devices, or the error that keeps it from starting."""
    try:
        import jax

        devices = jax.local_devices()
        return {
            "backend": jax.default_backend(),
            "processes": jax.process_count(),
            "devices": [
                {"id": device.id, "kind": device.device_kind, "memory_bytes": _device_memory(device)}
                for device in devices
            ],
        }
    except Exception as error:  # noqa: BLE001 - a broken installation is exactly what this report is for
        return {"error": f"{type(error).__name__}: {error}"}


def _device_memory(device: Any) -> int | None:
    """Bytes XLA may use of the device; None where the backend does not say, as on CPU."""
    return (device.memory_stats() or {}).get("bytes_limit")


def _caches() -> dict[str, str]:
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    return {"hugging_face": str(Path(hub).expanduser()), "compilation": str(Path("~/.cache/jaxllm/xla").expanduser())}


def _as_text(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """One aligned line per value; nested tables are indented."""
    width = max((len(key.removesuffix("_bytes")) for key in report), default=0)
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _as_text(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            for item in value:
                yield f"{indent}  - " + ", ".join(" ".join(_shown(name, each)) for name, each in item.items())
        else:
            name, text = _shown(key, value)
            yield f"{indent}{name:{width}}  {text}"


def _shown(key: str, value: Any) -> tuple[str, str]:
    """A key and its value for people: sizes in GiB, words for None."""
    name = key.removesuffix("_bytes")
    if value is None:
        return name, "not said" if name != key or name.endswith("cores") else "not installed"
    return name, str(value) if name == key else f"{value / 2**30:.1f} GiB"
