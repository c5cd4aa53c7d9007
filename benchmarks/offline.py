"""Throughput, time to first token and inter-token latency of the engine, for three workloads."""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.shared.reference_model import write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.requests} x ({self.prompt_tokens} in, {self.output_tokens} out)"


WORKLOADS = (Workload(1, 32, 64), Workload(8, 128, 64), Workload(32, 128, 64))


@dataclass(frozen=True)
class Measurement:
    """One run of a workload. Times in milliseconds; medians over requests (TTFT) or over tokens (ITL)."""

    output_tokens_per_s: float
    ttft_ms: float
    itl_ms: float


def run(engine: Engine, workload: Workload, rng: np.random.Generator, temperature: float) -> Measurement:
    """Run a workload of random prompts to its end."""
    params = SamplingParams(temperature=temperature, max_tokens=workload.output_tokens, ignore_eos=True)
    vocab_size = engine.info.vocab_size
    start = time.perf_counter()
    for index in range(workload.requests):
        prompt = rng.integers(3, vocab_size, size=workload.prompt_tokens).astype(np.int32)
        engine.add_request(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    times: dict[str, list[float]] = {}
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            times.setdefault(output.request_id, []).append(now)
    elapsed = time.perf_counter() - start
    gaps = np.concatenate([np.diff(each) for each in times.values()])
    first = [each[0] - start for each in times.values()]
    tokens = workload.requests * workload.output_tokens
    return Measurement(tokens / elapsed, float(np.median(first)) * 1e3, float(np.median(gaps)) * 1e3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", help="folder or name of a model instead of the 125 M parameter reference model")
    parser.add_argument("--repeat", type=int, default=3, help="counted runs of each workload, after one to warm up")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max-num-batched-tokens", type=int, help="token budget of a step")
    parser.add_argument("--optimization-level", type=int, default=3, help="how hard XLA tries on CPU, 0 to 3")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as scratch:
        reference = options.model is None
        model = str(write_reference_model(Path(scratch))) if reference else options.model
        start = time.perf_counter()
        engine = Engine.from_config(
            EngineConfig.from_options(
                {
                    "model": model,
                    "load_format": "dummy" if reference else "auto",
                    "max_model_len": 1024 if reference else None,
                    "max_num_batched_tokens": options.max_num_batched_tokens,
                    "enable_prefix_caching": False,
                    "optimization_level": options.optimization_level,
                    "strict_compilation": True,
                }
            )
        )
    started = time.perf_counter() - start
    rng = np.random.default_rng(0)
    results = {}
    for workload in WORKLOADS:
        runs = [run(engine, workload, rng, options.temperature) for _ in range(options.repeat + 1)][1:]
        columns = {name: [asdict(each)[name] for each in runs] for name in asdict(runs[0])}
        results[str(workload)] = {name: float(np.median(values)) for name, values in columns.items()}
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print(f"start-up {started:.1f} s")
    print(f"{'workload':26} {'output tok/s':>13} {'TTFT ms':>9} {'ITL ms':>8}")
    for name, figures in results.items():
        print(f"{name:26} {figures['output_tokens_per_s']:13.1f} {figures['ttft_ms']:9.1f} {figures['itl_ms']:8.2f}")


if __name__ == "__main__":
    main()
