"""Pipeline parallel on processors: throughput of one stage and of two, compared with two devices that share every
matrix.

    scripts/bench stages                         each line takes a minute of processor time, most of it to compile
    scripts/bench stages --requests 8 32         so many requests at once

Each engine runs in a process on as many processors as it has devices, or on those that its line says. One device has
kernels of its own for CPUs, several have XLA's: lines marked "xla" have these on one device too, so that they differ in
nothing but stages. "busy" is the share of the time in which each stage worked.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.data_parallel import throughput
from benchmarks.shared.reference_model import write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.stats import StepStats
from jaxllm.serving.llm.async_llm import AsyncLLM

XLA = {"attention_backend": "xla"}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "1 device, own kernels": (1, {}),
    "1 device, own kernels, 2 processors": (2, {}),
    "1 device, xla": (1, XLA),
    "1 device, xla, 2 processors": (2, XLA),
    "2 stages, xla": (2, XLA | {"pipeline_parallel_size": 2}),
    "tensor parallel 2, xla": (2, XLA | {"tensor_parallel_size": 2}),
}
"""Processors and options by what is printed."""


class Busy:
    """An observer of how long stages worked while the engine had steps."""

    def __init__(self) -> None:
        self.first: tuple[float, ...] = ()
        self.last: tuple[float, ...] = ()
        self.seconds = 0.0

    def observe(self, stats: StepStats | None, measured: object, engine: int = 0) -> None:
        """Take one message of an engine."""
        del measured, engine
        if stats is None:
            return
        self.first = self.first or stats.stage_seconds
        self.last = stats.stage_seconds
        self.seconds += stats.step_seconds

    @property
    def shares(self) -> list[float]:
        """Of each stage."""
        worked = [last - first for first, last in zip(self.first, self.last, strict=True)]
        return [each / self.seconds for each in worked] if self.seconds else []


async def child(options: dict[str, Any], requests: Sequence[int]) -> dict[str, Any]:
    """What one process measures: tokens a second, and shares, by how many requests there are at once."""
    llm = await AsyncLLM.start(EngineConfig.from_options(options), log_level="error")
    found = {}
    try:
        for count in requests:
            busy = Busy()
            llm.observers.append(busy)
            found[str(count)] = {"tokens_per_s": await throughput(llm, count), "busy": busy.shares}
            llm.observers.remove(busy)
    finally:
        await llm.shutdown()
    return found


def _run(model: Path, processors: int, requests: Sequence[int], more: dict[str, Any]) -> dict[str, Any]:
    options = {
        "model": str(model), "tokenizer": "demo", "load_format": "dummy", "device": "cpu", "dtype": "float32",
        "max_num_seqs": max(requests), "max_num_batched_tokens": 256, "max_model_len": 512,
        "kv_cache_memory_bytes": 1 << 28, "enable_prefix_caching": False, **more,
    }  # fmt: skip
    allowed = sorted(os.sched_getaffinity(0))[:processors]
    command = [sys.executable, "-m", "benchmarks.stages", "--child", json.dumps(options), "--requests"]
    done = subprocess.run(
        [*command, *map(str, requests)],
        stdout=subprocess.PIPE, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each kind of engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[8, 32], help="requests at once (8 32)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="which engines (all)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(asyncio.run(child(json.loads(options.child), options.requests))))
        return
    print(f"output tokens/s, 64 tokens in and 64 out; requests at once: {', '.join(map(str, options.requests))}")
    with tempfile.TemporaryDirectory() as scratch:
        model = write_reference_model(Path(scratch) / "model")
        for name in options.kinds:
            processors, more = KINDS[name]
            found = _run(model, processors, options.requests, more)
            parts = [f"{each['tokens_per_s']:8.0f}" for each in found.values()]
            busy = [f"{share:.0%}" for share in list(found.values())[-1]["busy"]]
            print(f"  {name:38}{''.join(parts)}{'  busy ' + ' '.join(busy) if busy else ''}", flush=True)


if __name__ == "__main__":
    main()
