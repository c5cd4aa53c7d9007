"""Options of steps and of what they return: the scheduler, outputs, grammars, traces."""

from dataclasses import dataclass
from typing import Literal

from jaxllm.config.option import Section, option
from jaxllm.config.processor_names import as_names


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions(Section):
    """Who runs in a step."""

    max_num_seqs: int | None = option(
        None,
        "Most requests running at once. Default: 256, or 128 or 64 where memory is short; 64 on CPU and for pooling.",
        minimum=1,
        maximum=4096,
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Most tokens computed in one step, prompts and decodes together. Default: 8192, or 4096 or 2048 where memory "
        "is short; 512 on CPU, else 2048 for pooling.",
        minimum=1,
    )
    max_num_active_seqs: int | None = option(
        None, "Most requests running at once, where that shall be less than max_num_seqs.", minimum=1, maximum=4096
    )
    max_num_scheduled_tokens: int | None = option(
        None, "Most tokens computed in one step, where that shall be less than max_num_batched_tokens.", minimum=1
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "Order of the queue: first come first served, or lowest priority number first."
    )
    long_prefill_token_threshold: int = option(
        0, "Most prompt tokens of one request in one step; 0 means only the token budget limits it.", minimum=0
    )
    async_scheduling: bool = option(
        True, "Schedule and start each step while the one before it runs, so that the device need not wait."
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Section):
    """What a request may ask to be returned."""

    max_logprobs: int = option(
        20,
        "Most alternatives per token a request may ask for; -1: the whole vocabulary, which makes steps slower.",
        minimum=-1,
        maximum=1024,
    )
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = option(
        "raw_logprobs",
        "What logprobs are: log-probabilities or logits, the model's own or those that tokens were drawn with, after "
        "bias, penalties, grammar, temperature, top-k, top-p and min-p. Those of prompts and of logprob_token_ids are "
        "the model's own. Beam search needs 'raw_logprobs'.",
    )
    logits_processors: tuple[str, ...] = option(
        (),
        "Python classes that change scores before tokens are chosen, as package.module:Class or the name of an entry "
        "point; they run in the engine's process. See docs/logits_processors.md.",
        read=as_names,
    )
    stream_interval: int = option(
        1,
        "Tokens that a stream brings at a time, after the first: more take less processor time, and come later. "
        "Requests may ask for more.",
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions(Section):
    """Traces of the device."""

    profiler_dir: str | None = option(
        None,
        "Folder for traces of the device and the host, which xprof and TensorBoard show. POST /start_profile begins "
        "one, POST /stop_profile writes it. They grow by megabytes a second.",
    )


@dataclass(frozen=True, kw_only=True)
class StructuredOptions(Section):
    """Outputs that follow a grammar."""

    structured_outputs_backend: Literal["llguidance"] = option("llguidance", "What compiles and follows grammars.")
    structured_outputs_cache_size: int = option(256, "Most compiled grammars that are kept.", minimum=1)
    structured_outputs_preload: bool = option(
        False,
        "Read the vocabulary at start instead of with the first grammar, which may hold everybody up for seconds "
        "where it is large.",
    )
    structured_outputs_canary: bool = option(
        True,
        "Try every new grammar in a process that may die of it, within limits of memory and time, before the engine "
        "compiles it. A script that trusts its grammars may turn it off; a server may not.",
    )
    disable_any_whitespace: bool = option(False, "No whitespace between the tokens of JSON, whatever requests say.")
    disable_additional_properties: bool = option(
        False, "JSON objects have only the properties that their schema names, unless it says otherwise."
    )
