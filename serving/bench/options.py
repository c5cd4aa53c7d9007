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
    """What the requests ask for."""

    dataset_name: Literal["random", "sharegpt", "sonnet", "prefix_repetition", "custom", "file", "burstgpt"] = option(
        "random",
        "Kind of prompts: random, sharegpt, sonnet, prefix_repetition, custom, file, burstgpt. custom: an object per "
        "line, with prompt or messages, and output_tokens; file: the same in a *.jsonl, in others a prompt per line.",
    )
    dataset_path: str | None = option(None, "File of the prompts, for every kind but random and prefix_repetition.")
    num_prompts: int = option(1000, "Requests to make.", minimum=1)
    input_len: int | None = option(None, "Stands for --random-input-len and --sonnet-input-len.", minimum=1)
    output_len: int | None = option(None, "Stands for the output length of whatever dataset.", minimum=1)
    no_oversample: bool = option(False, "Make fewer requests where the file has fewer, rather than repeating them.")
    disable_shuffle: bool = option(False, "Take the requests of a file in their order.")
    skip_chat_template: bool = option(
        False, "Send prompts of sonnet and custom to /v1/completions as they are, not as a user's message."
    )
    chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "More variables of the chat template that renders those."
    )
    random_input_len: int = option(1024, "Tokens in.", minimum=1)
    random_output_len: int = option(128, "Tokens out.", minimum=1)
    random_range_ratio: float = option(
        0.0, "Lengths vary by this share, up and down; less than 1.", minimum=0.0, maximum=1.0
    )
    random_prefix_len: int = option(0, "Tokens that all random prompts begin with, besides those in.", minimum=0)
    random_batch_size: int = option(1, "Random prompts in a request for embeddings.", minimum=1)
    sharegpt_output_len: int | None = option(None, "Tokens out; by default those of the file's answer.", minimum=1)
    sonnet_input_len: int = option(550, "Most tokens in.", minimum=1)
    sonnet_output_len: int = option(150, "Tokens out.", minimum=1)
    sonnet_prefix_len: int = option(200, "Tokens that all prompts share, of those in.", minimum=0)
    custom_output_len: int | None = option(
        None, "Tokens out, whatever the file says; -1: what the file says. By default, what it says, or 256.",
        minimum=-1,
    )  # fmt: skip
    prefix_repetition_prefix_len: int = option(256, "Tokens of a prefix.", minimum=0)
    prefix_repetition_suffix_len: int = option(256, "Tokens that follow it, different in every request.", minimum=0)
    prefix_repetition_num_prefixes: int = option(10, "Different prefixes.", minimum=1)
    prefix_repetition_output_len: int = option(128, "Tokens out.", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_range_ratio == 1:
            raise ConfigError("random_range_ratio=1.0: must be less than 1")
        if (self.dataset_path is None) != self.is_synthetic:
            verb = "reads no" if self.is_synthetic else "needs"
            raise ConfigError(f"--dataset-name {self.dataset_name} {verb} --dataset-path")

    @property
    def is_synthetic(self) -> bool:
        """Whether prompts are made of random tokens alone."""
        return self.dataset_name in ("random", "prefix_repetition")


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Section):
    """Where the requests go."""

    backend: Literal["openai", "openai-chat", "openai-embeddings"] | None = option(
        None, "What is spoken there; by default what the endpoint says.", synonyms={"vllm": "openai"}
    )
    base_url: str | None = option(None, "Address of the server, without a path; instead of --host and --port.")
    host: str = option("127.0.0.1", "Its host.")
    port: int = option(8000, "Its port.", minimum=1, maximum=65535)
    endpoint: str | None = option(None, "Path to call; by default the backend's: /v1/completions, ...")
    api_key: str | None = option(None, "Its key.", environment="JAXLLM_API_KEY, or $OPENAI_API_KEY")
    header: tuple[str, ...] = option((), "More headers for every request, as KEY=VALUE.")
    request_id_prefix: str | None = option(None, "Send X-Request-Id: this and the number of the request.")
    model: str | None = option(None, "Name of the model; by default the server's first.")
    served_model_name: str | None = option(None, "Its name at the server, where --model is a folder or hub id.")
    lora_modules: tuple[str, ...] = option((), "Names of adapters; each request goes to one of them.")
    lora_assignment: Literal["random", "round-robin"] = option("random", "How requests are given to adapters.")
    tokenizer: str | None = option(None, "Folder or hub id of the tokenizer; by default the model's.")
    ready_check_timeout_sec: int = option(0, "Wait so many seconds for the server to answer.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Section):
    """When requests are sent, and what all of them carry."""

    request_rate: float = option(math.inf, "Requests per second; inf sends all at once.")
    burstiness: float = option(
        1.0, "1: gaps as of a Poisson process; less: in bursts; more: more even; inf: all the same."
    )
    max_concurrency: int | None = option(None, "Most requests under way at once.", minimum=1)
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "Let the rate grow from request to request, instead of --request-rate."
    )
    ramp_up_start_rps: float | None = option(None, "Requests per second at first.", minimum=0)
    ramp_up_end_rps: float | None = option(None, "Requests per second at last.", minimum=0)
    num_warmups: int = option(1, "Requests before, not counted.", minimum=0)
    probe_request_rate: float = option(
        0.0, "Requests of one token per second beside the load, measured apart; 0: none.", minimum=0.0
    )
    seed: int = option(0, "Of prompts and times.", minimum=0)
    ignore_eos: bool | None = option(
        None, "Let answers be as long as asked for; by default so with random prompts, as in vLLM."
    )
    logprobs: int | None = option(None, "Ask for log-probabilities of so many tokens at each place.", minimum=0)
    temperature: float | None = option(None, "Of sampling; by default the server's.", minimum=0.0)
    top_p: float | None = option(None, "Of sampling; by default the server's.")
    top_k: int | None = option(None, "Of sampling; by default the server's.")
    min_p: float | None = option(None, "Of sampling; by default the server's.")
    frequency_penalty: float | None = option(None, "Of sampling; by default the server's.")
    presence_penalty: float | None = option(None, "Of sampling; by default the server's.")
    repetition_penalty: float | None = option(None, "Of sampling; by default the server's.")
    extra_body: Mapping[str, Any] | None = option(None, "More fields for every request.")
    profile: bool = option(False, "Have the server trace its device meanwhile; it needs --profiler-dir.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("request_rate", "burstiness"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be greater than 0")
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise ConfigError("ramp_up_start_rps and ramp_up_end_rps need ramp_up_strategy")
            return
        if not math.isinf(self.request_rate):
            raise ConfigError("request_rate: leave it out where ramp_up_strategy says the rate")
        first, last = ends
        if first is None or last is None or first > last or last == 0:
            raise ConfigError("ramp_up_strategy needs ramp_up_start_rps and a ramp_up_end_rps that is not less")
        if self.ramp_up_strategy == "exponential" and first == 0:
            raise ConfigError("ramp_up_start_rps=0: an exponential ramp starts above 0")

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that are given."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Section):
    """What is shown and kept."""

    percentile_metrics: str | None = option(
        None,
        "What to show, of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue; by default the first "
        "four, and of embeddings e2el.",
    )
    metric_percentiles: str = option("50,90,99", "Which percentiles of them.")
    goodput: tuple[str, ...] = option(
        (), "Count requests that keep these limits, such as ttft:500 tpot:50 e2el:2000 (ms)."
    )
    label: str | None = option(None, "Name of this run in its file; by default the backend.")
    metadata: tuple[str, ...] = option((), "More for the file, as KEY=VALUE.")
    save_result: bool = option(False, "Write the figures to a JSON file.")
    append_result: bool = option(False, "Append them to it, as a line.")
    save_detailed: bool = option(False, "In it, also every single request.")
    result_dir: str = option(".", "Folder of that file.")
    result_filename: str | None = option(None, "Its name; by default made from label, rate, model and time.")
    plot: str | None = option(None, "Write a picture of the distributions and of the throughput here (PNG).")
    disable_tqdm: bool = option(False, "No progress bar.")
