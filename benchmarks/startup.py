"""Start-up to the first token, with an empty and with a filled compilation cache."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.reference_model import write_reference_model

CHILD = """
import json, sys, time
start = time.perf_counter()
times = {}
def lap(name):
    global start
    now = time.perf_counter()
    times[name] = now - start
    start = now
options = json.loads(sys.argv[1])
from jaxllm import LLM, SamplingParams
import jaxllm.serving.llm
lap("import")
llm = LLM(**options, show_progress=False, skip_tokenizer_init=options["load_format"] == "dummy")
lap("load and compile")
llm.generate([[5, 6, 7]], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
lap("first token")
print(json.dumps(times))
"""


def start_once(options: dict[str, object]) -> dict[str, float]:
    """Seconds of each phase of one start in a fresh process."""
    command = [sys.executable, "-c", CHILD, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**times, "total": sum(times.values())}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds per phase, cold and warm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="demo", help="a model, or 'reference' for 125 M random parameters")
    parser.add_argument("--warm-runs", type=int, default=2, help="starts with the filled cache")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        reference = options.model == "reference"
        model = str(write_reference_model(Path(scratch) / "model")) if reference else options.model
        engine: dict[str, object] = {
            "model": model,
            "load_format": "dummy" if reference else "auto",
            "compilation_cache_dir": str(Path(scratch) / "cache"),
        }
        runs = {"cold": start_once(engine)}
        for index in range(options.warm_runs):
            runs[f"warm {index + 1}"] = start_once(engine)
    phases = list(runs["cold"])
    print(f"{'seconds':8}" + "".join(f"{phase:>18}" for phase in phases))
    for name, times in runs.items():
        print(f"{name:8}" + "".join(f"{times[phase]:18.2f}" for phase in phases))


if __name__ == "__main__":
    main()
