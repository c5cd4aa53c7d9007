"""Runs all that a first machine with an accelerator should run, and packs what it finds into one file.

Needs nothing but the standard library, so that it can say what else is missing. See `scripts/first_light`.
"""

import argparse
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""The shape of Llama-3-8B: nothing is downloaded, and the weights are random."""

LEAST_BYTES_FOR_8B = 22 * 2**30
"""Memory of a device on which that model is measured."""


@dataclass(frozen=True)
class Part:
    """One command. `platforms` are those on which it makes sense, all where there are none; `needs` are packages."""

    name: str
    title: str
    command: tuple[str, ...]
    seconds: float
    platforms: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    least_bytes: int = 0
    in_parallel: tuple[str, ...] = ()
    """Further arguments on a GPU, which several processes can use at once, where pytest-xdist is installed."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a part went: 'ok', 'failed', 'timed out' or 'skipped', and its last line."""

    name: str
    status: str
    seconds: float
    last_line: str
    log: str = ""


def parts(folder: Path) -> tuple[Part, ...]:
    """All parts, the most telling first. `folder` takes their reports."""
    python = sys.executable
    doctor = (python, "-m", "jaxllm", "doctor")
    model, accelerators = str(folder / "llama-8b"), ("tpu", "gpu")
    pytest = (
        python, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "--confcutdir", "tests", "--import-mode=importlib",
        "-p", "no:cacheprovider", "-o", "markers=device", "-m", "device", "-q", "-rfEs", "tests/device",
    )  # fmt: skip
    stages = [flag for stage in ("devices", "attention", "steps") for flag in ("--stage", stage)]
    return (
        Part("doctor", "checks with the demo model",
             (*doctor, "--timeout", "180", "--report", str(folder / "doctor.json")), 480),
        Part("doctor_8b", "attention and step times of Llama-3-8B, random weights",
             (*doctor, "--model", model, "--load-format", "dummy", *stages, "--timeout", "240", "--report",
              str(folder / "doctor_8b.json")), 480, accelerators, least_bytes=LEAST_BYTES_FOR_8B),
        Part("tests", "tests marked `device`", pytest, 420, accelerators, ("pytest", "hypothesis"),
             in_parallel=("-n", "8"), environment={"JAXLLM_TEST_ON_DEVICE": "1"}),
        Part("gpu_attention", "the GPU kernel compared with XLA and cuDNN",
             (python, "-m", "benchmarks.gpu_attention", "--only", "llama_3_8b"), 240, ("gpu",)),
        Part("offline", "throughput of a model of 125 M parameters",
             (python, "-m", "benchmarks.offline", "--repeat", "1"), 240),
        Part("collect_env", "versions", (python, "-m", "jaxllm", "collect-env", "--json"), 60),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts: 0 when all went well, 1 when one did not, 2 when nothing can be run."""
    options = _parse(arguments)
    missing = missing_packages(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    if missing:
        print(f"missing in {sys.executable}: pip install {' '.join(map(repr, missing))}", file=sys.stderr)
    if any(_name(package) in ("jax", "flax", "msgspec", "numpy", "psutil", "safetensors") for package in missing):
        print("no part can run without these", file=sys.stderr)
        return 2
    stamp = f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    folder = Path(options.out) / f"first-light-{stamp}"
    (folder / "llama-8b").mkdir(parents=True)
    (folder / "llama-8b" / "config.json").write_text(json.dumps(LLAMA_8B))
    end = time.monotonic() + 60 * options.minutes
    results: list[Result] = []
    try:
        for part in parts(folder):
            if not options.only or part.name in options.only:
                results.append(run_part(part, folder, end - time.monotonic()))
                print(line(results[-1]), flush=True)
    finally:
        path = write_report(folder, results, missing)
        print(f"\nplease return this file: {path}")
    return int(any(result.status in ("failed", "timed out") for result in results))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/first_light", description=__doc__)
    names = [part.name for part in parts(Path())]
    parser.add_argument(
        "--minutes", type=float, default=20, help="Time limit for all parts together in minutes. Default: 20."
    )
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="PART", help=f"Run only these parts, of {', '.join(names)}."
    )
    parser.add_argument("--out", default=".", help="Folder for the report. Default: the current one.")
    return parser.parse_args(arguments)


def missing_packages(project: dict[str, Any]) -> list[str]:
    """Requirements of the package that are not installed, whatever their version."""
    wanted = (requirement.partition(";")[0].strip() for requirement in project["project"]["dependencies"])
    return [requirement for requirement in wanted if not is_installed(_name(requirement))]


def _name(requirement: str) -> str:
    return requirement.split(">", maxsplit=1)[0].split("=", maxsplit=1)[0].split("[", maxsplit=1)[0].strip()


def is_installed(package: str) -> bool:
    """Whether a distribution of this name is there."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def run_part(part: Part, folder: Path, left: float) -> Result:
    """Run one part within its own time and what is `left` of all, in seconds."""
    reason = why_not(part, folder, left)
    if reason:
        return Result(part.name, "skipped", 0.0, reason)
    log, seconds = folder / f"{part.name}.log", min(part.seconds, left)
    print(f"{part.name}: {part.title} (at most {seconds:.0f} s)", file=sys.stderr, flush=True)
    begin = time.monotonic()
    with log.open("wb") as file:
        code = _run(command_of(part, folder), part.environment, file, seconds)
    text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    status = "timed out" if code is None else "failed" if code else "ok"
    return Result(part.name, status, round(time.monotonic() - begin, 1), text[-1] if text else "", log.name)


def why_not(part: Part, folder: Path, left: float) -> str | None:
    """Why a part is not run here; None where it is."""
    if left < min(30, part.seconds):
        return "no time left; raise --minutes"
    absent = [package for package in part.needs if not is_installed(package)]
    if absent:
        return f"pip install {' '.join(absent)}"
    found = devices(folder)
    if found is None:
        return None if not part.platforms else "the doctor found no working device, or was not run"
    if part.platforms and found["backend"] not in part.platforms:
        return f"does not apply to {found['backend']}"
    memory = found["devices"][0]["memory_bytes"] or 0
    return f"needs {part.least_bytes / 2**30:.0f} GiB on a device" if memory < part.least_bytes else None


def devices(folder: Path) -> dict[str, Any] | None:
    """What the doctor found out about devices; None where it found none or was not run."""
    path = folder / "doctor.json"
    if not path.exists():
        return None
    stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
    return next((stage["figures"] for stage in stages if stage["name"] == "devices" and stage["figures"]), None)


def command_of(part: Part, folder: Path) -> tuple[str, ...]:
    """The part's command on these devices."""
    found = devices(folder)
    is_gpu = found is not None and found["backend"] == "gpu"
    return (*part.command, *part.in_parallel) if is_gpu and is_installed("pytest-xdist") else part.command


def _run(command: Sequence[str], variables: Mapping[str, str], log: IO[bytes], seconds: float) -> int | None:
    """The exit code; None when it had to be ended."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", **variables}
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        # The doctor then ends its children, which are in sessions of their own.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def line(result: Result) -> str:
    """A part's result for people."""
    return f"{result.status:10}{result.name:15}{result.seconds:6.0f} s  {result.last_line[:120]}"


def write_report(folder: Path, results: Sequence[Result], missing: Sequence[str]) -> Path:
    """Summaries alongside the logs, all in one archive."""
    summary = {
        "python": sys.version,
        "machine": list(os.uname()),
        "commit": _commit(),
        "missing": list(missing),
        "parts": [asdict(result) for result in results],
    }
    (folder / "report.json").write_text(json.dumps(summary, indent=2))
    (folder / "report.txt").write_text("\n".join(map(line, results)) + "\n")
    path = folder.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def _commit() -> str | None:
    with suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    return None


if __name__ == "__main__":
    sys.exit(main())
