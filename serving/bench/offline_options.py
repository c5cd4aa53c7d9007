"""Options of `jaxllm bench latency`, `throughput` and `startup` alongside the engine's, under vLLM's names."""

from dataclasses import dataclass

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Section):
    """The batch, and the number of runs."""

    input_len: int = option(32, "Tokens of each prompt.", minimum=1)
    output_len: int = option(128, "Output tokens per prompt.", minimum=1)
    batch_size: int = option(8, "Number of prompts per batch.", minimum=1)
    n: int = option(1, "Sequences per prompt; beams, with --use-beam-search.", minimum=1)
    use_beam_search: bool = option(False, "Run beam search with --n beams instead of sampling.")
    num_iters_warmup: int = option(10, "Warm-up runs, not included in the results.", minimum=0)
    num_iters: int = option(30, "Measured runs.", minimum=1)
    disable_detokenize: bool = option(False, "Do not convert tokens to text.")
    profile: bool = option(False, "Trace one run instead of measuring; requires --profiler-dir.")
    output_json: str | None = option(None, "Write the results to this file.")


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(Section):
    """Execution of the requests."""

    n: int = option(1, "Sequences per prompt.", minimum=1)
    disable_detokenize: bool = option(False, "Do not convert tokens to text.")
    profile: bool = option(False, "Trace the device during the run; requires --profiler-dir.")
    output_json: str | None = option(None, "Write the results to this file.")


@dataclass(frozen=True, kw_only=True)
class StartupOptions(Section):
    """Number of engine starts, each in a new process."""

    num_iters_cold: int = option(3, "Starts with empty compilation caches.", minimum=0)
    num_iters_warmup: int = option(1, "Starts that fill the caches, not included in the results.", minimum=0)
    num_iters_warm: int = option(3, "Starts with this machine's compilation caches.", minimum=0)
    output_json: str | None = option(None, "Write the results to this file.")
