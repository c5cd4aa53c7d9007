"""Jaxllm against vLLM for CPU on this machine: the same workloads, alternating; medians and ratios."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.bound import BYTES, bound
from benchmarks.peers.install import default_folder, install_vllm
from benchmarks.peers.workloads import WORKLOADS, Measurement, Workload
from benchmarks.shared.machine import Machine, measure_machine
from benchmarks.shared.reference_model import VOCAB_SIZE, write_reference_model

MODELS: dict[str, dict[str, int]] = {
    "125m": {},
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""Changes to the reference model's configuration."""

KV_BYTES = 2 << 30
MAX_NUM_SEQS = 64
FIGURES = ("output_tokens_per_s", "ttft_ms", "itl_ms")
WARM_UPS = 2
"""Runs of each engine that do not count. A step takes up to twice as long in the first ones after both have started."""
PAUSE_S = 1.0
"""Before each run: threads of the engine that ran before it spin for a while, waiting for work."""


@dataclass
class Worker:
    """An engine in its process."""

    process: subprocess.Popen[str]
    start_s: float
    """From the start of the process until the engine was ready."""

    def run(self, workload: Workload, seed: int) -> Measurement:
        """One run of a workload."""
        assert self.process.stdin is not None
        print(json.dumps({"workload": asdict(workload), "seed": seed}), file=self.process.stdin, flush=True)
        return Measurement(**self._answer())

    def wait_until_ready(self, began: float) -> None:
        """Note how long the start took."""
        self._answer()
        self.start_s = time.perf_counter() - began

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with status {self.process.wait()}; its last words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def started(engine: str, python: Path, options: dict[str, Any], cache: Path) -> Iterator[Worker]:
    """A worker whose compilations are cached in `cache`; it ends with the block."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cache), "VLLM_CACHE_ROOT": str(cache)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    command = [str(python), "-m", "benchmarks.peers.worker", engine, json.dumps(options)]
    log = cache / "log"
    began = time.perf_counter()
    with (
        log.open("a") as words,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True, env=environment
        ) as process,
    ):
        worker = Worker(process, 0.0)
        try:
            worker.wait_until_ready(began)
            yield worker
        except SystemExit:
            print("".join(log.read_text().splitlines(keepends=True)[-20:]), file=sys.stderr)
            raise
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def compare(
    model: str, dtype: str, workloads: Sequence[Workload], pythons: dict[str, Path], runs: int, machine: Machine
) -> Iterator[dict[str, Any]]:
    """Rows of figures: one per start and one per workload, the engines alternating."""
    with tempfile.TemporaryDirectory(prefix="jaxllm-compare-") as scratch:
        folder = Path(scratch)
        config = _write_model(folder / "model", model)
        for engine in pythons:
            (folder / engine).mkdir()
        for caching in (False, True):
            chosen = [workload for workload in workloads if bool(workload.shared_tokens) == caching]
            if not chosen:
                continue
            options = {
                "model": str(folder / "model"),
                "dtype": dtype,
                "max_model_len": max(each.prompt_tokens + each.output_tokens for each in WORKLOADS),
                "max_num_seqs": MAX_NUM_SEQS,
                "prefix_caching": caching,
                "kv_bytes": KV_BYTES,
                "vocab_size": VOCAB_SIZE,
            }
            if not caching:
                cold = _starts(pythons, options, folder)
                yield _row(model, "start, cold", {"start_s": cold})
                early = _early_start(pythons["jaxllm"], options, folder)
                yield _row(model, "start, cold, compiling in background", {"start_s": {**cold, "jaxllm": early}})
            with ExitStack() as stack:
                workers = {
                    engine: stack.enter_context(started(engine, python, options, folder / engine))
                    for engine, python in pythons.items()
                }
                if not caching:
                    yield _row(model, "start, warm", {"start_s": {e: worker.start_s for e, worker in workers.items()}})
                for workload in chosen:
                    figures = _in_turn(workers, workload, runs)
                    figures["bound"] = asdict(bound(workload, config, machine, dtype))
                    yield _row(model, str(workload), figures)


def _write_model(folder: Path, model: str) -> dict[str, Any]:
    """Write the model's configuration, and return it."""
    path = write_reference_model(folder) / "config.json"
    config: dict[str, Any] = {**json.loads(path.read_text()), **MODELS[model]}
    path.write_text(json.dumps(config, indent=1))
    return config


def _starts(pythons: dict[str, Path], options: dict[str, Any], folder: Path) -> dict[str, float]:
    """Seconds of a start with empty caches."""
    times = {}
    for engine, python in pythons.items():
        with started(engine, python, options, folder / engine) as worker:
            times[engine] = worker.start_s
    return times


def _early_start(python: Path, options: dict[str, Any], folder: Path) -> float:
    """Seconds until jaxllm takes requests with empty caches when it need not have compiled all shapes."""
    cache = folder / "early"
    cache.mkdir()
    with started("jaxllm", python, {**options, "extra": {"background_compilation": True}}, cache) as worker:
        return worker.start_s


def _in_turn(workers: dict[str, Worker], workload: Workload, runs: int) -> dict[str, dict[str, float]]:
    """Medians over `runs` runs by each engine, after some to warm up, with other prompts in each run."""
    results: dict[str, list[Measurement]] = {engine: [] for engine in workers}
    for seed in range(WARM_UPS + runs):
        tokens = set()
        for engine, worker in workers.items():
            time.sleep(PAUSE_S)
            result = worker.run(workload, seed)
            tokens.add(result.output_tokens)
            if seed >= WARM_UPS:
                results[engine].append(result)
        if len(tokens) > 1:
            raise SystemExit(f"{workload}: the engines gave different numbers of tokens: {sorted(tokens)}")
    return {
        figure: {engine: statistics.median(getattr(each, figure) for each in done) for engine, done in results.items()}
        for figure in FIGURES
    }


def _row(model: str, name: str, figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {"model": model, "workload": name, **figures}


def describe(row: dict[str, Any]) -> str:
    """A row as text: ours, theirs, and how many times better ours is."""
    parts = []
    for figure, unit in (
        ("start_s", "s"),
        ("output_tokens_per_s", "tok/s"),
        ("ttft_ms", "ms first"),
        ("itl_ms", "ms next"),
    ):
        if figure not in row:
            continue
        ours, theirs = row[figure]["jaxllm"], row[figure]["vllm"]
        better = ours / theirs if unit == "tok/s" else theirs / ours
        parts.append(f"{ours:8.1f} {theirs:8.1f} {unit:9} {better:5.2f} x")
        if figure in row.get("bound", {}):
            most = row["bound"][figure]
            shares = (each / most if unit == "tok/s" else most / each for each in (ours, theirs))
            parts[-1] += " ({:.0%}, {:.0%})".format(*shares)
    return f"{row['model']:5} {row['workload']:40} " + "   ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per workload as it is done: jaxllm, vLLM, and how many times better jaxllm is.

    In brackets, what each reaches of the most that any engine could on this machine (`benchmarks.peers.bound`).
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["125m"], help="size of the model")
    parser.add_argument("--dtype", choices=BYTES, default="bfloat16", help="type of weights, activations and cache")
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workload", nargs="+", choices=names, default=names, help="what to run")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each workload by each engine")
    parser.add_argument("--peer", type=Path, default=default_folder(), help="where vLLM is, or will be installed")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args(arguments)
    pythons = {"jaxllm": Path(sys.executable), "vllm": install_vllm(options.peer)}
    chosen = [workload for workload in WORKLOADS if workload.name in options.workload]
    machine = measure_machine()
    print(
        f"this machine: {machine.flops / 1e9:.0f} GFLOP/s of float32 in registers, "
        f"{machine.bfloat16_flops / 1e9:.0f} of bfloat16, {machine.bandwidth / 1e9:.0f} GB/s from memory; "
        f"{options.dtype}"
    )
    print(f"{'model':5} {'workload':40}   jaxllm     vLLM, how many times better jaxllm is (shares of the bound)")
    rows = []
    for model in options.model:
        for row in compare(model, options.dtype, chosen, pythons, options.runs, machine):
            rows.append(row)
            print(describe(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
