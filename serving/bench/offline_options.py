"""Options of `jaxllm bench latency`, `throughput` and `startup` alongside the engine's, under vLLM's names."""

from dataclasses import dataclass

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Section):
    """The batch, and how often it is run."""

    input_len: int = option(32, "Tokens of each prompt.", minimum=1)
    output_len: int = option(128, "Tokens of each answer.", minimum=1)
    batch_size: int = option(8, "Prompts that are run together.", minimum=1)
    n: int = option(1, "Answers to each prompt; beams, with --use-beam-search.", minimum=1)
    use_beam_search: bool = option(False, "Search with --n beams instead of sampling.")
    num_iters_warmup: int = option(10, "Runs before, not counted.", minimum=0)
    num_iters: int = option(30, "Runs that count.", minimum=1)
    disable_detokenize: bool = option(False, "Make no text of the tokens.")
    profile: bool = option(False, "Trace one run instead of measuring; needs --profiler-dir.")
    output_json: str | None = option(None, "Write the figures to this file.")


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(Section):
    """How the requests are run."""

    n: int = option(1, "Answers to each prompt.", minimum=1)
    disable_detokenize: bool = option(False, "Make no text of the tokens.")
    profile: bool = option(False, "Trace the device meanwhile; needs --profiler-dir.")
    output_json: str | None = option(None, "Write the figures to this file.")


@dataclass(frozen=True, kw_only=True)
class StartupOptions(Section):
    """How often the engine is started, each time in a process of its own."""

    num_iters_cold: int = option(3, "Starts with empty caches of programs.", minimum=0)
    num_iters_warmup: int = option(1, "Starts that fill the caches, not counted.", minimum=0)
    num_iters_warm: int = option(3, "Starts with the caches of this machine.", minimum=0)
    output_json: str | None = option(None, "Write the figures to this file.")
