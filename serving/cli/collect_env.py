"""`jaxllm collect-env`: what a bug report needs."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from jaxllm.flags import FlagParser
from jaxllm.serving.server.machine import machine

HELP = "Print the information a bug report needs: versions, devices, memory, caches."


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
    found = machine()
    # The device stands where a reader looks for it: after the versions.
    behind = {name: found.pop(name) for name in ("caches", "environment")}
    return {**found, "jax": _backend(), **behind}


def _backend() -> dict[str, Any]:
    """The default backend and its devices, or the error that keeps it from starting."""
    try:
        # A JAX that cannot be imported is part of the report.
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
