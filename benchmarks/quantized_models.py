"""Tokens a second of a whole model on CPU, its weights rounded while loading, compared with plain ones in the same run.

    scripts/bench quantized_models [--small] [--dtype bfloat16] [--kinds int8,int4] [--repeat 3]

All engines are in one process and take turns, so that other load on the machine hits them alike. Of each workload and
kind: medians of its runs, and how many times as fast as those of plain weights of `--dtype` they are.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.offline import Workload, run
from benchmarks.shared.reference_model import BILLION, write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine

WORKLOADS = (Workload(1, 32, 32), Workload(8, 128, 32), Workload(32, 128, 32), Workload(1, 512, 2))
"""Of the last, the time to the first token counts."""
PLAIN = "plain"


def engine_of(folder: Path, kind: str, dtype: str) -> Engine:
    """An engine on random weights of a kind, whose shapes are compiled when they are met."""
    options = {
        "model": str(folder), "load_format": "dummy", "dtype": dtype, "max_model_len": 1024,
        "enable_prefix_caching": False, "enforce_eager": True, "num_gpu_blocks_override": 600,
        "quantization": None if kind == PLAIN else kind,
    }  # fmt: skip
    return Engine.from_config(EngineConfig.from_options(options))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each workload and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="125 million parameters in place of 1.1 billion")
    parser.add_argument(
        "--kinds",
        default="int8,int8_w8a8,int4,int8_w4a8",
        help="values of --quantization, in addition to plain weights",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="type of activations, cache, plain weights"
    )
    parser.add_argument("--repeat", type=int, default=3, help="counted runs of each workload and kind, after one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_reference_model(Path(scratch), **({} if options.small else BILLION))
        kinds = dict.fromkeys((PLAIN, *options.kinds.split(",")))
        engines = {kind: engine_of(folder, kind, options.dtype) for kind in kinds}
    rng = np.random.default_rng(0)
    print(f"{'workload':26} {'kind':9} {'output tok/s':>13} {'ITL ms':>8} {'TTFT ms':>9} {'decode':>7} {'prompt':>7}")
    for workload in WORKLOADS:
        for engine in engines.values():
            run(engine, workload, rng, 0.0)
        rounds = [
            {kind: run(engine, workload, rng, 0.0) for kind, engine in engines.items()} for _ in range(options.repeat)
        ]
        for kind in engines:
            names = ("output_tokens_per_s", "itl_ms", "ttft_ms")
            rate, gap, first = (median(getattr(each[kind], name) for each in rounds) for name in names)
            _, plain_gap, plain_first = (median(getattr(each[PLAIN], name) for each in rounds) for name in names)
            ratios = f"{plain_gap / gap:6.2f}x {plain_first / first:6.2f}x"
            print(f"{workload!s:26} {kind:9} {rate:13.1f} {gap:8.2f} {first:9.1f} {ratios}", flush=True)


if __name__ == "__main__":
    main()
