"""Every option of `jaxllm bench serve`, once, under the names of `vllm bench serve`; flags derive from them.

The datasets' are also those of `jaxllm bench throughput`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config import Section, option
from jaxllm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(Section):
    """The dataset of requests."""

    dataset_name: Literal["random", "sharegpt", "sonnet", "prefix_repetition", "custom", "file", "burstgpt"] = option(
        "random",
        "Source of prompts: random, sharegpt, sonnet, prefix_repetition, custom, file or burstgpt. custom: a file "
        "with one JSON object per line, with prompt or messages, and output_tokens; file: a *.jsonl file like that, "
        "or any other file with one prompt per line.",
    )
    dataset_path: str | None = option(None, "File of the dataset; required except for random and prefix_repetition.")
    num_prompts: int = option(1000, "Number of requests to send.", minimum=1)
    input_len: int | None = option(None, "Sets --random-input-len and --sonnet-input-len.", minimum=1)
    output_len: int | None = option(None, "Sets the output length of the chosen dataset.", minimum=1)
    no_oversample: bool = option(
        False, "If the file has fewer requests than --num-prompts, send fewer instead of repeating some."
    )
    disable_shuffle: bool = option(False, "Send the requests of a file in order.")
    skip_chat_template: bool = option(
        False, "Send prompts of sonnet and custom to /v1/completions as they are, not as a user message."
    )
    chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "Additional variables for the chat template that renders these prompts, as JSON."
    )
    random_input_len: int = option(1024, "Prompt tokens of a random request.", minimum=1)
    random_output_len: int = option(128, "Output tokens of a random request.", minimum=1)
    random_range_ratio: float = option(
        0.0, "Relative variation of random lengths in both directions; less than 1.", minimum=0.0, maximum=1.0
    )
    random_prefix_len: int = option(
        0, "Tokens of a prefix that all random prompts share, in addition to --random-input-len.", minimum=0
    )
    random_batch_size: int = option(1, "Number of random prompts per embedding request.", minimum=1)
    sharegpt_output_len: int | None = option(
        None, "Output tokens; default: the length of the answer in the file.", minimum=1
    )
    sonnet_input_len: int = option(550, "Maximum number of prompt tokens of a sonnet request.", minimum=1)
    sonnet_output_len: int = option(150, "Output tokens of a sonnet request.", minimum=1)
    sonnet_prefix_len: int = option(
        200, "Prompt tokens that all sonnet requests share; part of --sonnet-input-len.", minimum=0
    )
    custom_output_len: int | None = option(
        None, "Output tokens of every request; -1: the number in the file. Default: the number in the file, or 256.",
        minimum=-1,
    )  # fmt: skip
    prefix_repetition_prefix_len: int = option(256, "Tokens of each shared prefix.", minimum=0)
    prefix_repetition_suffix_len: int = option(256, "Tokens after the prefix, different in every request.", minimum=0)
    prefix_repetition_num_prefixes: int = option(10, "Number of different prefixes.", minimum=1)
    prefix_repetition_output_len: int = option(128, "Output tokens of each request.", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_range_ratio == 1:
            raise ConfigError("random_range_ratio=1.0: must be less than 1")
        if (self.dataset_path is None) != self.is_synthetic:
            verb = "does not use" if self.is_synthetic else "needs"
            raise ConfigError(f"--dataset-name {self.dataset_name} {verb} --dataset-path")

    @property
    def is_synthetic(self) -> bool:
        """Whether prompts are made of random tokens alone."""
        return self.dataset_name in ("random", "prefix_repetition")


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Section):
    """The server to test."""

    backend: Literal["openai", "openai-chat", "openai-embeddings"] | None = option(
        None, "API of the server; default: determined by --endpoint.", synonyms={"vllm": "openai"}
    )
    base_url: str | None = option(None, "Address of the server, without a path; replaces --host and --port.")
    host: str = option("127.0.0.1", "Host of the server.")
    port: int = option(8000, "Port of the server.", minimum=1, maximum=65535)
    endpoint: str | None = option(None, "Path to call; default: the path of the backend, such as /v1/completions.")
    api_key: str | None = option(None, "API key of the server.", environment="JAXLLM_API_KEY, or $OPENAI_API_KEY")
    header: tuple[str, ...] = option((), "Additional HTTP headers of every request, as KEY=VALUE.")
    request_id_prefix: str | None = option(
        None, "Send X-Request-Id headers: this prefix and the number of the request."
    )
    model: str | None = option(None, "Name of the model; default: the server's first model.")
    served_model_name: str | None = option(None, "Name of the model at the server, if --model is a folder or Hub ID.")
    lora_modules: tuple[str, ...] = option((), "Names of adapters; each request uses one of them.")
    lora_assignment: Literal["random", "round-robin"] = option("random", "How to assign adapters to requests.")
    tokenizer: str | None = option(None, "Folder or Hub ID of the tokenizer; default: the model's.")
    ready_check_timeout_sec: int = option(0, "Seconds to wait for the server to respond before the test.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Section):
    """Arrival of requests, and their common parameters."""

    request_rate: float = option(math.inf, "Requests per second; inf sends all at once.")
    burstiness: float = option(
        1.0,
        "Distribution of arrivals: 1 is a Poisson process, smaller values are burstier, larger ones more regular; "
        "inf makes all gaps equal.",
    )
    max_concurrency: int | None = option(None, "Maximum number of requests in flight.", minimum=1)
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "Increase the rate over the run, instead of a fixed --request-rate."
    )
    ramp_up_start_rps: float | None = option(None, "Requests per second at the start.", minimum=0)
    ramp_up_end_rps: float | None = option(None, "Requests per second at the end.", minimum=0)
    num_warmups: int = option(1, "Warm-up requests, not included in the results.", minimum=0)
    probe_request_rate: float = option(
        0.0,
        "Rate of additional one-token requests per second, reported separately from the load; 0: none.",
        minimum=0.0,
    )
    seed: int = option(0, "Seed for prompts and arrival times.", minimum=0)
    ignore_eos: bool | None = option(
        None,
        "Generate the requested number of tokens even after an end token; default: only with random prompts, as in "
        "vLLM.",
    )
    logprobs: int | None = option(None, "Number of log-probabilities to request per output token.", minimum=0)
    temperature: float | None = option(None, "Sampling temperature; default: the server's.", minimum=0.0)
    top_p: float | None = option(None, "Top-p of sampling; default: the server's.")
    top_k: int | None = option(None, "Top-k of sampling; default: the server's.")
    min_p: float | None = option(None, "Min-p of sampling; default: the server's.")
    frequency_penalty: float | None = option(None, "Frequency penalty of sampling; default: the server's.")
    presence_penalty: float | None = option(None, "Presence penalty of sampling; default: the server's.")
    repetition_penalty: float | None = option(None, "Repetition penalty of sampling; default: the server's.")
    extra_body: Mapping[str, Any] | None = option(None, "Additional fields of every request body, as JSON.")
    profile: bool = option(False, "Trace the server's device during the test; the server needs --profiler-dir.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("request_rate", "burstiness"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be greater than 0")
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise ConfigError("ramp_up_start_rps and ramp_up_end_rps require ramp_up_strategy")
            return
        if not math.isinf(self.request_rate):
            raise ConfigError("request_rate and ramp_up_strategy cannot be combined")
        first, last = ends
        if first is None or last is None or first > last or last == 0:
            raise ConfigError(
                "ramp_up_strategy requires ramp_up_start_rps and a ramp_up_end_rps that is greater than 0 and not "
                "smaller"
            )
        if self.ramp_up_strategy == "exponential" and first == 0:
            raise ConfigError("ramp_up_start_rps=0: must be greater than 0 for an exponential ramp")

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that are given."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Section):
    """Figures to report and to save."""

    percentile_metrics: str | None = option(
        None,
        "Metrics to report, of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue; default: the "
        "first four, or e2el for embeddings.",
    )
    metric_percentiles: str = option("50,90,99", "Percentiles to report of each metric.")
    goodput: tuple[str, ...] = option(
        (), "Count the requests that meet these limits in ms, such as ttft:500 tpot:50 e2el:2000."
    )
    label: str | None = option(None, "Name of this run in the result file; default: the backend.")
    metadata: tuple[str, ...] = option((), "Additional entries of the result file, as KEY=VALUE.")
    save_result: bool = option(False, "Write the results to a JSON file.")
    append_result: bool = option(False, "Append the results to the file as a line instead of replacing it.")
    save_detailed: bool = option(False, "Include every request in the result file.")
    result_dir: str = option(".", "Folder of the result file.")
    result_filename: str | None = option(
        None, "Name of the result file; default: made from label, rate, model and time."
    )
    plot: str | None = option(None, "Plot the distributions and the throughput to this PNG file.")
    disable_tqdm: bool = option(False, "Show no progress bar.")
