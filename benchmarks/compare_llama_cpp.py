"""Jaxllm against llama.cpp on this machine: the same shapes and bits per weight, alternating; medians and ratios.

    scripts/bench compare_llama_cpp --kind bf16 q8_0 q4_k_m

For each kind of weights: output tokens/s with the time of the prompts, milliseconds until the prompts are read, and
milliseconds between tokens. jaxllm keeps activations and its cache in bfloat16; its `int8_w8a8` and `int8_w4a8` are
what comes next to llama.cpp's Q8_0 and Q4_K_M, which round activations to 8 bits, too. llama.cpp runs its own
`llama-batched-bench`, which samples nothing and schedules nothing. The first use builds it (about 15 minutes).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import FIGURES, KV_BYTES, MAX_NUM_SEQS, PAUSE_S, WARM_UPS, started
from benchmarks.peers.install import peers_folder
from benchmarks.peers.llama_cpp import VERSION, install_llama_cpp, quantize, run, write_gguf
from benchmarks.peers.workloads import Measurement, Workload
from benchmarks.shared.reference_model import BILLION, VOCAB_SIZE, write_reference_model

KINDS: dict[str, str | None] = {"bf16": None, "q8_0": "int8_w8a8", "q4_k_m": "int8_w4a8"}
"""llama.cpp's types, in lower case, and the value of `--quantization` that stands next to each."""
WORKLOADS = (Workload("single", 1, 128, 64), Workload("eight", 8, 128, 64), Workload("many", 32, 128, 64))


def compare(kind: str, size: str, chosen: Sequence[Workload], programs: Path, runs: int) -> Iterator[dict[str, Any]]:
    """A row of medians for each workload, the engines alternating."""
    with tempfile.TemporaryDirectory(prefix="jaxllm-compare-") as scratch:
        folder = Path(scratch)
        others = {"num_hidden_layers": BILLION["layers"], **BILLION} if size == "1b" else {}
        others.pop("layers", None)
        config = json.loads((write_reference_model(folder / "model", **others) / "config.json").read_text())
        model = folder / "bf16.gguf"
        write_gguf(model, config)
        if kind != "bf16":
            model = quantize(programs, model, kind.upper())
        extra = {"quantization": KINDS[kind]} if KINDS[kind] else {}
        options = {
            "model": str(folder / "model"),
            "dtype": "bfloat16",
            "max_model_len": 1024,
            "max_num_seqs": MAX_NUM_SEQS,
            "prefix_caching": False,
            "kv_bytes": KV_BYTES,
            "vocab_size": VOCAB_SIZE,
            "extra": extra,
        }
        (folder / "cache").mkdir()
        with started("jaxllm", Path(sys.executable), options, folder / "cache") as worker:
            for workload in chosen:
                results: dict[str, list[Measurement]] = {"jaxllm": [], "llama.cpp": []}
                for seed in range(WARM_UPS + runs):
                    time.sleep(PAUSE_S)
                    ours = worker.run(workload, seed)
                    time.sleep(PAUSE_S)
                    theirs = run(programs, model, workload)
                    if seed >= WARM_UPS:
                        results["jaxllm"].append(ours)
                        results["llama.cpp"].append(theirs)
                figures = {
                    figure: {
                        name: statistics.median(getattr(each, figure) for each in done)
                        for name, done in results.items()
                    }
                    for figure in FIGURES
                }
                yield {"model": size, "kind": kind, "workload": str(workload), **figures}


def describe(row: dict[str, Any]) -> str:
    """A row as text: ours, llama.cpp's, and how many times better ours is."""
    parts = []
    for figure, unit in zip(FIGURES, ("tok/s", "ms prompts", "ms next"), strict=True):
        ours, theirs = row[figure]["jaxllm"], row[figure]["llama.cpp"]
        better = ours / theirs if unit == "tok/s" else theirs / ours
        parts.append(f"{ours:8.1f} {theirs:8.1f} {unit:10} {better:5.2f} x")
    return f"{row['model']:5} {row['kind']:7} {row['workload']:22} " + "   ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per kind of weights and workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("125m", "1b"), default="125m", help="size of the model (125m)")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS), help="types of weights (all)")
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workload", nargs="+", choices=names, default=names, help="what to run (all)")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each workload by each engine (3)")
    default = peers_folder() / f"llama-cpp-{VERSION}"
    parser.add_argument("--peer", type=Path, default=default, help="where llama.cpp is, or will be built")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args(arguments)
    programs = install_llama_cpp(options.peer)
    chosen = [workload for workload in WORKLOADS if workload.name in options.workload]
    print(f"{os.cpu_count()} cores; jaxllm, llama.cpp, how many times better jaxllm is", flush=True)
    rows = []
    for kind in options.kind:
        for row in compare(kind, options.model, chosen, programs, options.runs):
            rows.append(row)
            print(describe(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
