"""Latency of a batch and throughput of many requests, offline; figures have the names of `vllm bench`."""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxllm.errors import ConfigError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.offline_options import LatencyOptions, ThroughputOptions
from jaxllm.serving.bench.percentiles import percentiles
from jaxllm.serving.llm.beam_search import BeamSearchParams
from jaxllm.serving.llm.llm import LLM


def batch(llm: LLM, options: LatencyOptions, seed: int) -> Callable[[], None]:
    """A function that runs one batch of random prompts. Raises `ConfigError` where they are too long for the model."""
    info = llm.llm_engine.engine.info
    check_length(info.max_model_len, options.input_len, options.output_len)
    rng = np.random.default_rng(seed)
    prompts: Any = rng.integers(info.vocab_size, size=(options.batch_size, options.input_len)).tolist()
    if options.use_beam_search:
        beams = BeamSearchParams(beam_width=options.n, max_tokens=options.output_len, ignore_eos=True)
        return lambda: _drop(llm.beam_search(prompts, beams))
    params = SamplingParams(
        n=options.n,
        temperature=1.0,
        ignore_eos=True,
        max_tokens=options.output_len,
        detokenize=not options.disable_detokenize,
    )
    return lambda: _drop(llm.generate(prompts, params, use_tqdm=False))


def check_length(most: int, input_len: int, output_len: int) -> None:
    """Raise `ConfigError` unless so many tokens fit the model."""
    if input_len + output_len > most:
        raise ConfigError(
            f"{input_len} tokens in and {output_len} out exceed max_model_len={most}: reduce them or raise "
            "--max-model-len"
        )


def timed(work: Callable[[], None]) -> float:
    """How long it takes (s)."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def latency_figures(seconds: Sequence[float]) -> dict[str, Any]:
    """The figures of runs that took so long each."""
    return {
        "avg_latency": float(np.mean(seconds)),
        "std_latency": float(np.std(seconds)),
        "latencies": list(seconds),
        "percentiles": percentiles(seconds),
    }


def throughput(llm: LLM, requests: Sequence[LoadRequest], options: ThroughputOptions, bar: Any) -> dict[str, Any]:
    """Run all requests at once; the figures. `bar` is as `use_tqdm` of `LLM.generate`."""
    most = llm.llm_engine.engine.info.max_model_len
    for request in requests:
        check_length(most, request.prompt_tokens, request.output_tokens)
    params = [
        SamplingParams(
            n=options.n,
            temperature=1.0,
            ignore_eos=True,
            max_tokens=request.output_tokens,
            detokenize=not options.disable_detokenize,
        )
        for request in requests
    ]
    prompts: list[Any] = [
        request.prompt.tolist() if isinstance(request.prompt, array) else request.prompt for request in requests
    ]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=bar)
    elapsed = time.perf_counter() - start
    inputs = sum(len(output.prompt_token_ids) for output in outputs)
    made = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(requests),
        "total_num_tokens": inputs + made,
        "total_prompt_tokens": inputs,
        "total_output_tokens": made,
        "requests_per_second": len(requests) / elapsed,
        "tokens_per_second": (inputs + made) / elapsed,
        "output_tokens_per_second": made / elapsed,
    }


def _drop(_: object) -> None:
    """Forget a result."""
