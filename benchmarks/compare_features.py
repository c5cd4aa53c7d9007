"""What adapters and drafts cost or bring in jaxllm and in vLLM for CPU on this machine.

`adapters`: 32 requests of 128 tokens that make 64, with 8 LoRA adapters of rank 16 for all linear layers, and
the same requests without any, in an engine that has no slots for adapters. `drafts`: requests that copy their prompt,
with and without n-grams of the prompt as drafts, on the model of `benchmarks.speculation`.

For one engine after the other, two processes that alternate: output tokens/s, prompts included, without and with the
feature, and their ratio. vLLM takes over a minute for a run with adapters.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.adapters import ATTENTION, MLP, write_adapters
from benchmarks.compare import KV_BYTES, MAX_NUM_SEQS, PAUSE_S, WARM_UPS, Worker, started
from benchmarks.peers.install import default_folder, install_vllm
from benchmarks.peers.workloads import Workload
from benchmarks.shared.reference_model import VOCAB_SIZE, write_reference_model
from benchmarks.speculation import CYCLE, PROMPT, write_chain_model

NUM_ADAPTERS, RANK = 8, 16
NUM_DRAFTS, NGRAM = 7, 3
FEATURES = ("adapters", "drafts")
MANY = Workload("many", 32, 128, 64)
COPIES = tuple(Workload(f"copy {count}", count, PROMPT, 200, cycle=CYCLE) for count in (1, 8))


def with_feature(feature: str, engine: str, adapters: Sequence[str]) -> dict[str, Any]:
    """Options of a worker that turn the feature on."""
    if feature == "adapters":
        slots = {"enable_lora": True, "max_loras": NUM_ADAPTERS, "max_lora_rank": RANK}
        return {"adapters": list(adapters), "extra": slots}
    config = {"method": "ngram", "num_speculative_tokens": NUM_DRAFTS, "prompt_lookup_max": NGRAM}
    return {"extra": {"speculative_config": {**config, "prompt_lookup_min": NGRAM} if engine == "vllm" else config}}


def compare(feature: str, dtype: str, pythons: dict[str, Path], runs: int) -> Iterator[dict[str, Any]]:
    """A row for each workload and engine. `dtype` is that of weights, activations and cache."""
    with tempfile.TemporaryDirectory(prefix="jaxllm-compare-") as scratch:
        folder = Path(scratch)
        drafts = feature == "drafts"
        model = write_chain_model(folder / "model") if drafts else write_reference_model(folder / "model")
        adapters = [] if drafts else write_adapters(folder / "adapters", model, NUM_ADAPTERS, RANK, ATTENTION + MLP)
        options = {
            "model": str(model),
            "load_format": "auto" if drafts else "dummy",
            "dtype": dtype,
            "max_model_len": 1024,
            "max_num_seqs": MAX_NUM_SEQS,
            "prefix_caching": False,
            "kv_bytes": KV_BYTES,
            "vocab_size": VOCAB_SIZE,
        }
        for engine, python in pythons.items():
            with ExitStack() as stack:
                workers = []
                for on in (False, True):
                    cache = folder / f"{engine}-{on}"
                    cache.mkdir()
                    added = with_feature(feature, engine, [each.lora_path for each in adapters]) if on else {}
                    workers.append(stack.enter_context(started(engine, python, {**options, **added}, cache)))
                for workload in COPIES if drafts else (MANY,):
                    yield {"workload": str(workload), "engine": engine, **_in_turn(workers, workload, runs)}


def _in_turn(workers: Sequence[Worker], workload: Workload, runs: int) -> dict[str, float]:
    """Medians over `runs` runs of both workers, after some to warm up."""
    figures: list[list[float]] = [[] for _ in workers]
    for seed in range(WARM_UPS + runs):
        for place in (0, 1) if seed % 2 else (1, 0):
            time.sleep(PAUSE_S)
            result = workers[place].run(workload, seed)
            if seed >= WARM_UPS:
                figures[place].append(result.output_tokens_per_s)
    without, wanted = figures
    return {
        "without": round(statistics.median(without), 1),
        "with": round(statistics.median(wanted), 1),
        "ratio": round(statistics.median(b / a for a, b in zip(without, wanted, strict=True)), 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON for each workload and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--feature", nargs="+", choices=FEATURES, default=FEATURES)
    parser.add_argument("--dtype", default="bfloat16", help="type of weights, activations and cache")
    parser.add_argument("--runs", type=int, default=5, help="runs of each engine that count")
    parser.add_argument("--peer", type=Path, default=default_folder(), help="where vLLM is, or will be installed")
    parser.add_argument("--engines", nargs="+", choices=("jaxllm", "vllm"), default=("jaxllm", "vllm"))
    options = parser.parse_args(arguments)
    pythons = {"jaxllm": Path(sys.executable)}
    if "vllm" in options.engines:
        pythons["vllm"] = install_vllm(options.peer)
    for feature in options.feature:
        for row in compare(feature, options.dtype, {each: pythons[each] for each in options.engines}, options.runs):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
