"""Several engines: throughput of 1, 2, 4 with a processor each, cost of routing, and prefix hits by how requests go.

    scripts/bench data_parallel --sizes 1 2

Each number of engines runs in a process that may use as many processors, as far as there are so many. Conversations of
several turns then show which share of their prompts the engines find in their prefix caches.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.reference_model import VOCAB_SIZE, write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.stats import StepStats
from jaxllm.requests.sampling_params import RequestOutputKind, SamplingParams
from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.ipc.client.router import Router
from jaxllm.serving.llm.async_llm import AsyncLLM

_PROMPT, _OUTPUT = 64, 64
_TURN = 192
"""Tokens that a turn adds to its conversation."""


class PrefixCounts:
    """An observer of what engines found in their prefix caches."""

    def __init__(self) -> None:
        self.last: dict[int, StepStats] = {}

    def observe(self, stats: StepStats | None, measured: object, engine: int = 0) -> None:
        """Take one message of an engine."""
        del measured
        if stats is not None:
            self.last[engine] = stats

    @property
    def rate(self) -> float:
        """Share of prompt tokens that were found."""
        queries = sum(each.prefix_queries for each in self.last.values())
        return sum(each.prefix_hits for each in self.last.values()) / max(queries, 1)


def _prompt(rng: np.random.Generator, length: int) -> dict[str, Any]:
    return {"prompt_token_ids": rng.integers(3, VOCAB_SIZE, length).tolist()}


async def _answer(llm: AsyncLLM, prompt: Any, tokens: int) -> None:
    final = RequestOutputKind.FINAL_ONLY
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=final)
    async for _ in llm.generate(prompt, params):
        pass


async def throughput(llm: AsyncLLM, requests: int) -> float:
    """Output tokens a second of so many requests at once, the best of three."""
    best = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        prompts = [_prompt(rng, _PROMPT) for _ in range(requests)]
        start = time.perf_counter()
        await asyncio.gather(*(_answer(llm, prompt, _OUTPUT) for prompt in prompts))
        if seed:  # the first is to warm up
            best = max(best, requests * _OUTPUT / (time.perf_counter() - start))
    return best


async def conversations(llm: AsyncLLM, count: int, turns: int) -> tuple[float, float]:
    """(share of prompt tokens found in prefix caches, seconds) of so many conversations side by side."""
    counts = PrefixCounts()
    llm.observers.append(counts)

    async def converse(seed: int) -> None:
        rng = np.random.default_rng(1000 + seed)
        said: list[int] = []
        for _ in range(turns):
            said += _prompt(rng, _TURN)["prompt_token_ids"]
            await _answer(llm, {"prompt_token_ids": said}, 8)

    start = time.perf_counter()
    await asyncio.gather(*(converse(seed) for seed in range(count)))
    return counts.rate, time.perf_counter() - start


async def child(given: dict[str, Any]) -> dict[str, Any]:
    """Measurements of one process."""
    llm = await AsyncLLM.start(EngineConfig.from_options(given["options"]), log_level="error")
    try:
        if given["what"] == "throughput":
            return {"tokens_per_s": await throughput(llm, given["requests"])}
        rate, seconds = await conversations(llm, given["requests"], given["turns"])
        return {"hit_rate": rate, "seconds": seconds}
    finally:
        await llm.shutdown()


def _run(model: Path, size: int, routing: str, **given: Any) -> dict[str, Any]:
    options = {
        "model": str(model), "tokenizer": "demo", "load_format": "dummy",
        "data_parallel_size": size, "data_parallel_routing": routing,
        "max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28,
    }  # fmt: skip
    processors = sorted(os.sched_getaffinity(0))[:size]
    command = [sys.executable, "-m", "benchmarks.data_parallel", "--child", json.dumps({**given, "options": options})]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, processors)
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def routing_microseconds(routing: str, length: int, engines: int = 4, requests: int = 2000) -> float:
    """Time to choose an engine for a prompt of this length."""
    router = Router(routing)  # type: ignore[arg-type]
    prompts = [np.random.default_rng(seed).integers(3, 1000, length).astype(np.int32) for seed in range(50)]
    start = time.perf_counter()
    for number in range(requests):
        router.choose(range(engines), Prompt(token_ids=prompts[number % len(prompts)]))
    return (time.perf_counter() - start) / requests * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2], help="numbers of engines")
    parser.add_argument("--requests", type=int, default=16, help="requests at once for each engine; conversations")
    parser.add_argument("--turns", type=int, default=6, help="turns of a conversation")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(asyncio.run(child(json.loads(options.child)))))
        return
    for routing in ("load", "prefix"):
        each = ", ".join(f"{length}: {routing_microseconds(routing, length):.0f}" for length in (128, 1024, 8192))
        print(f"us to choose an engine by {routing}, for prompts of so many tokens: {each}")
    with tempfile.TemporaryDirectory() as scratch:
        model = write_reference_model(Path(scratch) / "model")
        for size in options.sizes:
            found = _run(model, size, "load", what="throughput", requests=size * options.requests)
            print(f"{size} engines: {found['tokens_per_s']:.0f} output tokens/s")
        for routing in ("load", "prefix"):
            found = _run(
                model, max(options.sizes), routing, what="turns", requests=options.requests, turns=options.turns
            )
            print(f"{max(options.sizes)} engines by {routing}: {found['hit_rate']:.1%} found, {found['seconds']:.1f} s")


if __name__ == "__main__":
    main()
