"""Starts engines in processes of their own, and times them.

Run as a module, it is such a process: `python -m jaxllm.serving.bench.startup JSON`, with the options of `LLM`. It
prints one line of JSON: seconds.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import EngineError
from jaxllm.serving.bench.percentiles import percentiles

TOTAL, COMPILATION = "total_startup_time", "compilation_time"
FIGURES = {TOTAL: ("startup", "Startup time"), COMPILATION: ("compilation", "Compilation time")}
"""What a start tells, how vLLM's result file calls it, and how a person does."""


def start_once(options: Mapping[str, Any], *, cold: bool) -> dict[str, float]:
    """The seconds of one start; a `cold` one has empty caches. Raises `EngineError` where it fails."""
    if not cold:
        return _start(options, {})
    with tempfile.TemporaryDirectory(prefix="jaxllm-startup-") as folder:
        given = {name: value for name, value in options.items() if name != "compilation_cache_dir"}
        # Models that were downloaded stay where they are: a download is no part of a start.
        hub = {"HF_HOME": os.environ.get("HF_HOME") or str(_cache_home() / "huggingface")}
        return _start(given, {"XDG_CACHE_HOME": folder, "JAX_COMPILATION_CACHE_DIR": folder, **hub})


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _start(options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "jaxllm.serving.bench.startup", json.dumps(dict(options))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise EngineError(f"the engine did not start: {reason[-500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def startup_figures(cold: Sequence[Mapping[str, float]], warm: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The figures of all starts, under vLLM's names; none of those that were not made."""
    found: dict[str, Any] = {}
    for phase, starts in (("cold", cold), ("warm", warm)):
        for figure, (name, _) in FIGURES.items():
            values = [start[figure] for start in starts]
            if values:
                found[f"avg_{phase}_{name}_time"] = sum(values) / len(values)
                found[f"{phase}_{name}_times"] = values
                found[f"{phase}_{name}_percentiles"] = percentiles(values)
    return found


def main() -> int:
    """Start once, and print how long it took."""
    # JSON has no tuples, which are what options of several values are.
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(sys.argv[1]).items()
    }
    start = time.perf_counter()
    # Imports are a part of the start that is timed.
    import jax

    from jaxllm.serving.llm.llm import LLM

    compiling = 0.0

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        nonlocal compiling
        # Summed over threads, which compile at the same time.
        compiling += duration_secs if event.endswith("backend_compile_duration") else 0.0

    jax.monitoring.register_event_duration_secs_listener(listen)
    with LLM(**options, show_progress=False):
        total = time.perf_counter() - start
    sys.stdout.write(json.dumps({TOTAL: total, COMPILATION: compiling}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
