"""Options of the scheduler, outputs, grammars and traces."""

from dataclasses import dataclass
from typing import Literal

from jaxllm.config.option import Section, option
from jaxllm.config.processor_names import as_names


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions(Section):
    """Limits and order of the requests that run in a step."""

    max_num_seqs: int | None = option(
        None,
        "Maximum number of requests running at once. Default: 256, or 128 or 64 if memory is short; 64 on CPU and "
        "for pooling.",
        minimum=1,
        maximum=4096,
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Maximum number of tokens computed in one step, prefill and decode together. Default: 8192, or 4096 or 2048 "
        "if memory is short; 512 on CPU; 2048 for pooling on other devices.",
        minimum=1,
    )
    max_num_active_seqs: int | None = option(
        None, "Limit on requests running at once; effective if lower than max_num_seqs.", minimum=1, maximum=4096
    )
    max_num_scheduled_tokens: int | None = option(
        None, "Limit on tokens computed in one step; effective if lower than max_num_batched_tokens.", minimum=1
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "Order of the queue: first come first served, or lowest priority number first."
    )
    long_prefill_token_threshold: int = option(
        0, "Maximum number of prompt tokens of one request in one step; 0: limited by the token budget only.", minimum=0
    )
    async_scheduling: bool = option(
        True, "Schedule and launch each step while the previous one runs, so that the device never waits for the host."
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Section):
    """Limits and defaults of what requests return."""

    max_logprobs: int = option(
        20,
        "Maximum number of alternatives per token that a request may ask for; -1: the whole vocabulary, which makes "
        "steps slower.",
        minimum=-1,
        maximum=1024,
    )
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = option(
        "raw_logprobs",
        "Content of logprobs: log-probabilities or logits, either raw from the model or processed, as used for "
        "sampling, after bias, penalties, grammar, temperature, top-k, top-p and min-p. Values for prompts and "
        "logprob_token_ids are always raw. Beam search requires 'raw_logprobs'.",
    )
    logits_processors: tuple[str, ...] = option(
        (),
        "Python classes that modify logits before sampling, as package.module:Class or the name of an entry point; "
        "they run in the engine process. See docs/logits_processors.md.",
        read=as_names,
    )
    stream_interval: int = option(
        1,
        "Number of tokens per chunk of a stream, after the first token: larger chunks cost less CPU time and arrive "
        "later. Requests may ask for a larger value.",
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions(Section):
    """Traces of device and host, and measurements that cost something."""

    profiler_dir: str | None = option(
        None,
        "Folder for traces of device and host, to be viewed with XProf or TensorBoard. POST /start_profile starts a "
        "trace, POST /stop_profile writes it. Traces grow by megabytes per second.",
    )
    enable_mfu_metrics: bool = option(
        False,
        "Count the operations of each step and the bytes that it reads and writes, by the estimate of jaxllm plan, for "
        "the utilization of devices. See docs/metrics.md.",
    )
    kv_cache_metrics: bool = option(
        False, "Measure how long cached KV pages live and lie idle before they are evicted."
    )
    kv_cache_metrics_sample: float = option(
        0.01, "Share of the KV pages that --kv-cache-metrics follows.", minimum=0.0001, maximum=1.0
    )


@dataclass(frozen=True, kw_only=True)
class StructuredOptions(Section):
    """Outputs constrained by a grammar."""

    structured_outputs_backend: Literal["llguidance"] = option(
        "llguidance", "Library that compiles grammars and computes the allowed tokens."
    )
    structured_outputs_cache_size: int = option(256, "Maximum number of compiled grammars in the cache.", minimum=1)
    structured_outputs_preload: bool = option(
        False,
        "Process the vocabulary at start-up instead of with the first grammar; a large vocabulary can delay all "
        "requests for seconds.",
    )
    structured_outputs_canary: bool = option(
        True,
        "Compile every new grammar in a separate process first, within limits of memory and time, so that a bad "
        "grammar cannot crash the engine. A script that trusts its grammars may turn this off; a server must not.",
    )
    disable_any_whitespace: bool = option(
        False, "Allow no whitespace between JSON tokens, regardless of what requests ask for."
    )
    disable_additional_properties: bool = option(
        False, "Allow only the properties that a JSON schema names, unless the schema says otherwise."
    )
