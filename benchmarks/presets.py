"""What each preset does to a server: its start, its memory, and its answers to 1, 8 and 32 requests at once.

    scripts/bench presets --rounds 3

A round starts a server with each preset, and one without, one after the other, and loads each with `jaxllm bench
serve`. In the first round nothing is compiled yet; later ones find the programs of the first. Prints the medians of the
rounds, and their ratios to those without a preset, which other load of the machine changes less.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import httpx

from benchmarks.shared.running_server import RunningServer
from jaxllm.config.presets import PRESETS

NONE = "none"
BODY = {"prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True}
REQUESTS = (1, 8, 32)
FIGURES = ("output_throughput", "median_ttft_ms", "median_itl_ms", "p99_itl_ms", "median_tpot_ms")
Figures = dict[str, float]


def measure(model: str, preset: str, folder: Path, cache: Path, args: argparse.Namespace) -> Figures:
    """Start a server and load it. Times in seconds but for those named ms, memory in MiB."""
    flags = (model, *(("--preset", preset) if preset != NONE else ()), "--compilation-cache-dir", str(cache))
    began = time.perf_counter()
    with RunningServer(flags, log=folder / "log") as server:
        found = {"start": time.perf_counter() - began, "start cpu": sum(server.cpu_seconds().values())}
        httpx.post(f"{server.base_url}/v1/completions", json=BODY, timeout=None).raise_for_status()
        found["first answer"] = time.perf_counter() - began
        found["first answer cpu"] = sum(server.cpu_seconds().values())
        for at_once in REQUESTS:
            before = sum(server.cpu_seconds().values())
            result = load(server, at_once, folder, args)
            tokens = at_once * args.each * args.output
            found |= {f"{name} {at_once}": result[name] for name in FIGURES}
            found[f"cpu us/token {at_once}"] = 1e6 * (sum(server.cpu_seconds().values()) - before) / tokens
        memory = server.memory()
        return {**found, "server MiB": memory["server"], "engine MiB": memory["engine"]}


def load(server: RunningServer, at_once: int, folder: Path, args: argparse.Namespace) -> Figures:
    """The result of `jaxllm bench serve` with so many requests at once."""
    command = [
        *(sys.executable, "-m", "jaxllm.serving.cli.main", "bench", "serve", "--base-url", server.base_url),
        *("--max-concurrency", str(at_once), "--num-prompts", str(at_once * args.each), "--num-warmups", str(at_once)),
        *("--random-input-len", str(args.input), "--random-output-len", str(args.output), "--seed", str(at_once)),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "result.json"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    result: Figures = json.loads((folder / "result.json").read_text())
    return result


def main() -> None:
    """Read the flags, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=4, help="requests for each of those at once")
    parser.add_argument("--input", type=int, default=200, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=48, help="tokens of an answer")
    args = parser.parse_args()
    names = [NONE, *PRESETS]
    found: dict[str, list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        for number in range(args.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                found[name].append(measure(args.model, name, folder, folder / f"cache-{name}", args))
                print(json.dumps({"round": number, "preset": name, **found[name][-1]}), file=sys.stderr, flush=True)
    print(f"{'':24}" + "".join(f"{name:>20}" for name in names))
    for figure in found[NONE][0]:
        medians = {name: statistics.median(each[figure] for each in found[name]) for name in names}
        row = "".join(f"{value:12.1f} ({value / max(medians[NONE], 1e-9):4.2f})" for value in medians.values())
        print(f"{figure:24}{row}")


if __name__ == "__main__":
    main()
