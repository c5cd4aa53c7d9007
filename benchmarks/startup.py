"""Start-up to the first token, with empty and with filled caches, in phases; and how long --help and import take."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.compare import MODELS
from benchmarks.shared.reference_checkpoint import read_once, write_reference_checkpoint
from benchmarks.shared.reference_model import write_reference_model

CHILD = """
import json, sys, time
began, options, has_tokenizer = float(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "True"
phases, stages, work = {"interpreter": (time.time() - began, time.process_time())}, {}, {}
clock = (time.perf_counter(), time.process_time())

def lap(name):
    global clock
    now = (time.perf_counter(), time.process_time())
    phases[name] = (now[0] - clock[0], now[1] - clock[1])
    clock = now

def progress(stage, done, total):
    now = time.perf_counter()
    first, _ = stages.get(stage, (now, now))
    stages[stage] = (first, now)

def listen(event, duration, **details):
    name = event.rsplit("/")[-1]
    work[name] = work.get(name, 0.0) + duration

import jax
jax.monitoring.register_event_duration_secs_listener(listen)
from jaxllm import SamplingParams
from jaxllm.config import EngineConfig
from jaxllm.serving.llm.llm_engine import LLMEngine
import jaxllm.engine.engine
lap("imports")
from jaxllm.executor.resolve import resolve_config
config = EngineConfig.from_options(options)
resolve_config(config)
lap("configuration")
engine = LLMEngine.from_config(config, skip_tokenizer_init=not has_tokenizer, progress=progress)
lap("engine")
engine.add_request("0", [5, 6, 7], SamplingParams(max_tokens=1, temperature=0))
while engine.has_unfinished_requests():
    engine.step()
lap("first token")
stages = {stage: last - first for stage, (first, last) in stages.items()}
print(json.dumps({"phases": phases, "stages": stages, "work": work}))
"""

WORK = {
    "jaxpr_trace_duration": "tracing",
    "jaxpr_to_mlir_module_duration": "lowering",
    "backend_compile_duration": "compiling, or reading JAX's cache",
}
"""What JAX reports of itself, added up over threads, by the name shown."""

SMALL = {"jaxllm --help": ["-m", "jaxllm.serving.cli.main", "--help"], "import jaxllm": ["-c", "import jaxllm"]}
"""Commands that must be quick whatever else happens."""


@dataclass(frozen=True)
class Start:
    """Seconds of one start.

    `phases` follow each other, as wall time and CPU time; `stages` are parts of "engine", which overlap; `work` is what
    JAX did in all threads together.
    """

    phases: dict[str, tuple[float, float]]
    stages: dict[str, float]
    work: dict[str, float]

    @property
    def total(self) -> tuple[float, float]:
        """Wall and CPU seconds to the first token."""
        walls, cpus = zip(*self.phases.values(), strict=True)
        return sum(walls), sum(cpus)


def start_once(options: Mapping[str, object], cache_home: str, *, has_tokenizer: bool) -> Start:
    """One start in a fresh process, with its caches in a folder."""
    command = [sys.executable, "-c", CHILD, str(time.time()), json.dumps(options), str(has_tokenizer)]
    environment = {**_environment(), "XDG_CACHE_HOME": cache_home}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def run_once(arguments: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a Python process."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=_environment())
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user - before.children_user + after.children_system - before.children_system


def _environment() -> dict[str, str]:
    """That of this process, with bytecode cached, as installed packages have it: Python's compiler is not measured."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def show(runs: Mapping[str, Start]) -> None:
    """Print a table: one line per phase, one column per start."""
    print(f"{'wall s (CPU s)':36}" + "".join(f"{name:>16}" for name in runs))
    for phase in next(iter(runs.values())).phases:
        print(f"{phase:36}" + "".join(f"{_pair(run.phases[phase]):>16}" for run in runs.values()))
        if phase == "engine":
            for stage in sorted({stage for run in runs.values() for stage in run.stages}):
                _show_part(stage.lower(), [run.stages.get(stage, 0.0) for run in runs.values()])
            for event, shown in WORK.items():
                _show_part(f"  {shown}", [run.work.get(event, 0.0) for run in runs.values()])
    print(f"{'to the first token':36}" + "".join(f"{_pair(run.total):>16}" for run in runs.values()))


def _show_part(name: str, seconds: Sequence[float]) -> None:
    print(f"  {name:34}" + "".join(f"{value:>8.2f}        " for value in seconds))


def _pair(times: tuple[float, float]) -> str:
    return f"{times[0]:.2f} ({times[1]:5.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds per phase, cold and warm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--model",
        default="demo",
        help="a model; 'reference' for 125 M parameters made at random in each start; or "
        f"{', '.join(MODELS)} for a checkpoint of that size in bfloat16, written first and deleted at the end",
    )
    parser.add_argument("--warm-runs", type=int, default=2, help="starts with filled caches")
    parser.add_argument("--options", default="{}", help="options of the engine, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    small = {name: [run_once(command) for _ in range(5)] for name, command in SMALL.items()}
    with tempfile.TemporaryDirectory() as scratch:
        engine: dict[str, object] = {"model": options.model, **json.loads(options.options)}
        folder, has_tokenizer = Path(scratch) / "model", False
        reads: list[tuple[float, float]] = []
        if options.model == "reference":
            engine |= {"model": str(write_reference_model(folder)), "load_format": "dummy"}
        elif options.model in MODELS:
            engine |= {"model": str(write_reference_checkpoint(folder, MODELS[options.model]))}
        else:
            has_tokenizer = True
        runs = {}
        for name in ("cold", *(f"warm {index + 1}" for index in range(options.warm_runs))):
            if options.model in MODELS:
                reads.append(read_once(folder))
            runs[name] = start_once(engine, scratch, has_tokenizer=has_tokenizer)
    if options.json:
        found = {"small": small, "reading": reads, "runs": {name: asdict(run) for name, run in runs.items()}}
        print(json.dumps(found, indent=1))
        return
    for name, times in small.items():
        print(f"{name:36}{_pair(sorted(times)[len(times) // 2]):>16}  (median of {len(times)})")
    if reads:
        print(f"{'reading the bytes, nothing else':36}" + "".join(f"{_pair(each):>16}" for each in reads))
    show(runs)


if __name__ == "__main__":
    main()
