"""Tiles of paged attention on the GPU that is here, measured and kept for engines; and how pages of other sizes do.

Each choice runs in a process of its own, which may hang or crash: its result is compared with the reference, then it is
timed. What is fastest goes to the user's cache (~/.cache/jaxllm/tuned), where engines find it until the GPU, the
libraries or the kernels are others. On a CPU small cases of XLA's attention are timed, which shows that all of it
works, and nothing else.

    scripts/bench gpu_tune
    scripts/bench gpu_tune --model qwen3-0.6b --page-size 16 32 64
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.tpu.cases import MODELS
from jaxllm.pallas_kernels.measured import store_measured
from jaxllm.pallas_kernels.paged_attention.cases import Case

TILES = {"prefill": (64, 128), "decode": (32, 64, 128)}
"""Keys of a tile that are tried for each kernel."""

ROWS = ((1, 0), (1, 15), (1, 300), (40, 0), (70, 130))
"""New and computed tokens of the rows that are compared with the reference."""

LOADS = {"prefill": ((2048, 0),), "decode": ((1, 1023),) * 64}
"""And of those that are timed."""

ENOUGH = 0.98
"""A tile must take at most this part of the time of the one in use: a clock that varies is no reason to change."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lines.add_argument("--model", nargs="+", choices=MODELS, default=["llama-3-8b"], help="whose heads (llama-3-8b)")
    lines.add_argument(
        "--page-size", nargs="+", type=int, default=[16], help="tokens per page (16); the first is tuned"
    )
    lines.add_argument("--timeout", type=float, default=240, help="seconds for one choice (240)")
    lines.add_argument("--child", help=argparse.SUPPRESS)
    return lines


def main() -> None:
    """Tune the heads of every model asked for."""
    options = parser().parse_args()
    if options.child:
        print(json.dumps(_measure(json.loads(options.child))))
        return
    for model in options.model:
        for kernel, tiles in TILES.items():
            question = {"model": model, "kernel": kernel, "page_size": options.page_size[0]}
            _tune(question, tiles, options.timeout)
            for page_size in options.page_size:
                found = _ask({**question, "page_size": page_size}, options.timeout)
                print(f"{model} {kernel}, pages of {page_size}: {_said(found)}", flush=True)


def _tune(question: dict[str, Any], tiles: Sequence[int], timeout: float) -> None:
    """Keep the fastest tile, if it is faster than what is in use."""
    in_use = _ask(question, timeout)
    print(f"{question['model']} {question['kernel']}, as it is: {_said(in_use)}", flush=True)
    if "microseconds" not in in_use:
        return
    times = {}
    for tile in tiles:
        found = _ask({**question, "tile": tile}, timeout)
        print(f"  tile {tile}: {_said(found)}", flush=True)
        times[tile] = found.get("microseconds", float("inf"))
    best = min(times, key=lambda tile: times[tile])
    if times[best] > ENOUGH * in_use["microseconds"]:
        return
    command = " ".join(["scripts/bench gpu_tune", *sys.argv[1:]])
    entry = {"key": in_use["key"], "blocks": {"tile": best}, "microseconds": times[best], "command": command}
    store_measured("paged_attention", in_use["device_kind"], entry)
    print(f"  kept: tile {best}", flush=True)


def _said(found: dict[str, Any]) -> str:
    return f"{found['microseconds']:.1f} µs" if "microseconds" in found else str(found["error"])


def _ask(question: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Measure in a process of its own, which finds the tile of the question in a cache of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu_tune", "--child", json.dumps(question)]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | ({"XDG_CACHE_HOME": cache} if "tile" in question else {})
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no result after {timeout:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it crashed"])[-1][:200]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _measure(question: dict[str, Any]) -> dict[str, Any]:
    """Be that process."""
    import jax

    from benchmarks.gpu_attention import time_paged
    from jaxllm.pallas_kernels.paged_attention.check import compare, run_case
    from jaxllm.pallas_kernels.paged_attention.gpu.batch import tile_key

    device, kernel, model = jax.local_devices()[0], question["kernel"], MODELS[question["model"]]
    implementation = "gpu" if device.platform == "gpu" else "xla"
    key = tile_key(model.head_size, "bfloat16", decode=kernel == "decode")
    answer: dict[str, Any] = {"device_kind": device.device_kind, "key": key}
    if "tile" in question:
        store_measured("paged_attention", device.device_kind, {"key": key, "blocks": {"tile": question["tile"]}})
    small = Case(
        "tune",
        ROWS,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        page_size=question["page_size"],
        dtype="bfloat16",
    )
    checked = compare(small, partial(run_case, implementation))
    if checked.error is None or checked.is_wrong:
        return answer | {"error": checked.reason or f"it is off by {checked.error:.1e}"}
    rows = LOADS[kernel] if device.platform == "gpu" else small.rows
    return answer | {"microseconds": time_paged(replace(small, rows=rows), implementation) * 1e6}


if __name__ == "__main__":
    main()
