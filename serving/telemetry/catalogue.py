"""All metrics of the engine and of its requests: names, meanings and bounds, under vLLM's names.

Dashboards and autoscalers made for vLLM so go on working. To add one, describe it in `METRICS` and count it in
`jaxllm.serving.telemetry.metrics`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxllm.serving.telemetry.histogram import Histogram


@dataclass(frozen=True)
class Described:
    """A metric as it is exposed, but for the prefix of its name; counters get `_total` appended."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    key: str = ""
    """Under which its value is counted, when that is not its name: old names share the value of the new one."""

    @property
    def source(self) -> str:
        """Name of the value it shows."""
        return self.key or self.name


METRICS = (
    Described("num_requests_running", "gauge", "Requests running in the batch."),
    Described("num_requests_waiting", "gauge", "Requests waiting to run."),
    Described(
        "num_requests_waiting_by_reason",
        "gauge",
        "Waiting requests, by reason: capacity, deferred until their grammar is compiled, or engine_restart until an "
        "engine that ended is back.",
    ),
    Described("kv_cache_usage_perc", "gauge", "Share of the KV cache used by running requests, 0 to 1."),
    Described("gpu_cache_usage_perc", "gauge", "Deprecated name of kv_cache_usage_perc.", "kv_cache_usage_perc"),
    Described("state_snapshots", "gauge", "Snapshots of recurrent states from which cached prefixes can be resumed."),
    Described(
        "engine_sleep_state",
        "gauge",
        "1 for the current state: awake, weights_offloaded (level 1) or discard_all (level 2); 0 for the others.",
    ),
    Described("weights_version", "gauge", "Number of weight updates since the engine started."),
    Described("cache_config_info", "gauge", "Always 1; its labels give the size and type of the KV cache."),
    Described(
        "lora_requests_info",
        "gauge",
        "The present time; its labels name the LoRA adapters that requests run with and wait for.",
    ),
    Described("lora_reads", "counter", "LoRA adapters read from their folders."),
    Described("lora_slot_writes", "counter", "LoRA adapters written to a slot on the devices."),
    Described("mm_cache_queries", "counter", "Images and sounds of requests looked up among the processed ones."),
    Described("mm_cache_hits", "counter", "Images and sounds found there, so that they were not processed again."),
    Described("encoder_cache_queries", "counter", "Images of requests looked up among the encoded ones."),
    Described("encoder_cache_hits", "counter", "Images found on the devices, so that they were not encoded again."),
    Described("prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache."),
    Described("prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache."),
    Described(
        "gpu_prefix_cache_queries", "counter", "Deprecated name of prefix_cache_queries.", "prefix_cache_queries"
    ),
    Described("gpu_prefix_cache_hits", "counter", "Deprecated name of prefix_cache_hits.", "prefix_cache_hits"),
    Described(
        "kv_events_dropped",
        "counter",
        "Batches of KV cache events that were not published because too many waited.",
    ),
    Described(
        "external_prefix_cache_queries",
        "counter",
        "Prompt tokens looked up in host memory because they were not in the prefix cache.",
    ),
    Described("external_prefix_cache_hits", "counter", "Prompt tokens loaded from host memory."),
    Described("kv_offload_load_bytes", "counter", "Bytes of KV pages and states loaded from host memory."),
    Described("kv_offload_load_time", "counter", "Seconds spent loading them, in a thread of its own."),
    Described("kv_offload_store_bytes", "counter", "Bytes of KV pages and states copied to host memory."),
    Described("kv_offload_store_time", "counter", "Seconds spent copying them, in a thread of its own."),
    Described(
        "kv_offload_stores_skipped",
        "counter",
        "KV pages and states not copied to host memory because copying fell behind or found no room.",
    ),
    Described(
        "kv_offload_load_failures",
        "counter",
        "Loads from host memory that failed or found damaged bytes; the tokens were recomputed.",
    ),
    Described(
        "kv_offload_cpu_cache_usage_perc", "gauge", "Share of the host memory for KV pages that is used, 0 to 1."
    ),
    Described("kv_offload_tiering_chunk_queries", "counter", "KV pages and states looked up in files."),
    Described("kv_offload_tiering_chunk_hits", "counter", "KV pages and states read from files to host memory."),
    Described("kv_offload_tiering_read_bytes", "counter", "Bytes of them."),
    Described("kv_offload_tiering_read_time", "counter", "Seconds spent reading them, in a thread of its own."),
    Described("kv_offload_tiering_write_bytes", "counter", "Bytes of KV pages and states written to files."),
    Described("kv_offload_tiering_write_time", "counter", "Seconds spent writing them, in a thread of its own."),
    Described(
        "kv_offload_tiering_promotion_job_failures",
        "counter",
        "Files of KV pages that could not be read or were damaged, and requests that waited for files in vain.",
    ),
    Described(
        "kv_offload_tiering_cascade_job_failures",
        "counter",
        "Failed attempts to write KV pages to files; after each there is none for 30 s.",
    ),
    Described(
        "kv_offload_disk_stores_skipped",
        "counter",
        "KV pages and states not written to files because writing failed, fell behind or found no room.",
    ),
    Described(
        "kv_offload_disk_usage_perc",
        "gauge",
        "Share of --kv-offloading-disk-size that the files of all engines in the folder take, 0 to 1.",
    ),
    Described("kv_transfer_requests", "counter", "Requests that named pages of another server."),
    Described("kv_transfer_tokens", "counter", "Prompt tokens whose pages were fetched from other servers."),
    Described("kv_transfer_received_bytes", "counter", "Bytes of pages and states that were fetched."),
    Described("kv_transfer_receive_time", "counter", "Seconds in which any fetch was under way."),
    Described(
        "kv_transfer_failures",
        "counter",
        "Fetches that failed, by reason: unreachable, refused, timeout, gone, damaged or no_room; the prompts were "
        "computed, or their requests failed (kv_load_failure_policy).",
    ),
    Described("nixl_num_failed_transfers", "counter", "Fetches that failed, for all reasons together."),
    Described("kv_transfer_sent_bytes", "counter", "Bytes of pages and states that other servers fetched."),
    Described("kv_transfer_leases", "gauge", "Prompts whose pages are kept for other servers."),
    Described("kv_transfer_leases_granted", "counter", "Prompts whose pages were kept for other servers."),
    Described("nixl_num_kv_expired_reqs", "counter", "Of these, prompts that nobody fetched or gave up in time."),
    Described(
        "kv_transfer_refused_peers", "counter", "Servers that were refused, since they have other pages or weights."
    ),
    Described("kv_transfer_foreign_messages", "counter", "Messages from other servers that could not be read."),
    Described(
        "num_preemptions",
        "counter",
        "Preemptions: requests that lost their KV cache pages to others and were recomputed.",
    ),
    Described("spec_decode_num_drafts", "counter", "Steps of a request that had draft tokens to check."),
    Described("spec_decode_num_draft_tokens", "counter", "Draft tokens that were checked."),
    Described("spec_decode_num_accepted_tokens", "counter", "Draft tokens that were accepted."),
    Described(
        "spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Accepted draft tokens by their position: 0 is the first after a token that was known.",
    ),
    Described("prompt_tokens", "counter", "Prompt tokens, counted when their request's first token is generated."),
    Described(
        "prompt_tokens_cached",
        "counter",
        "Prompt tokens found in the prefix cache, counted when their request's first token is generated.",
    ),
    Described(
        "prompt_tokens_by_source",
        "counter",
        "Prompt tokens by source: local_compute, local_cache_hit or external_kv_transfer.",
        "prompt_tokens",
    ),
    Described(
        "prompt_tokens_cached_by_source",
        "counter",
        "Prompt tokens found in the prefix cache, by location: device.",
        "prefix_cache_hits",
    ),
    Described("generation_tokens", "counter", "Generated tokens."),
    Described("request_success", "counter", "Finished sequences, by finish reason."),
    Described("admission_rejections", "counter", "Requests rejected with a Retry-After header, by error code."),
    Described(
        "request_timeouts",
        "counter",
        "Requests that were not answered within their time, by where they were: preparation (body, prompt, grammar), "
        "first_token (queue and prefill) or decode.",
    ),
    Described("iteration_tokens_total", "histogram", "Tokens computed per step."),
    Described("time_to_first_token_seconds", "histogram", "Time from arrival to the first token."),
    Described("inter_token_latency_seconds", "histogram", "Time between two tokens of a sequence."),
    Described(
        "time_per_output_token_seconds",
        "histogram",
        "Deprecated name of inter_token_latency_seconds.",
        "inter_token_latency_seconds",
    ),
    Described(
        "request_time_per_output_token_seconds",
        "histogram",
        "Mean time between the tokens of a sequence; not observed for a single token.",
    ),
    Described("e2e_request_latency_seconds", "histogram", "Time from arrival to the end of a request."),
    Described("request_queue_time_seconds", "histogram", "Time from arrival until first scheduled."),
    Described("request_inference_time_seconds", "histogram", "Time from first scheduled to the last token."),
    Described("request_prefill_time_seconds", "histogram", "Time from first scheduled to the first token."),
    Described("request_decode_time_seconds", "histogram", "Time from the first token to the last."),
    Described("request_prompt_tokens", "histogram", "Prompt tokens of a sequence."),
    Described(
        "request_prefill_kv_computed_tokens",
        "histogram",
        "Prompt tokens of a sequence that were not in the prefix cache.",
    ),
    Described("request_generation_tokens", "histogram", "Generated tokens of a sequence."),
    Described("request_max_num_generation_tokens", "histogram", "Generated tokens of a request's longest sequence."),
    Described("request_num_preemptions", "histogram", "Preemptions of a finished sequence."),
    Described("request_params_n", "histogram", "Parameter n of a request."),
    Described(
        "request_params_max_tokens", "histogram", "Parameter max_tokens, or the tokens that fit if it is not set."
    ),
    Described(
        "event_loop_lag_seconds",
        "histogram",
        "Time by which the event loop of an API server is late, looked at four times a second.",
    ),
    Described(
        "engine_loop_lag_seconds",
        "histogram",
        "Time until an engine answers a question that each API server asks every five seconds: the rest of its step, "
        "and whatever else holds up its loop.",
    ),
    Described(
        "process_memory_bytes",
        "gauge",
        "Resident memory of an engine's process on this machine, and of the largest API server process.",
    ),
    Described("compilations_after_warmup", "counter", "Compilations during steps; expected to be 0."),
    Described("engine_restarts", "counter", "Restarts of an engine that crashed or hung."),
    Described("requests_resumed", "counter", "Requests that continued in another engine after theirs had ended."),
    Described("api_server_restarts", "counter", "Restarts of API server processes."),
    Described("estimated_flops_per_gpu", "counter", "Operations of each device, with --enable-mfu-metrics."),
    Described(
        "estimated_read_bytes_per_gpu",
        "counter",
        "Bytes that each device read from its memory, with --enable-mfu-metrics.",
    ),
    Described(
        "estimated_write_bytes_per_gpu",
        "counter",
        "Bytes that each device wrote to its memory, with --enable-mfu-metrics.",
    ),
    Described(
        "peak_flops_per_gpu",
        "gauge",
        "Operations per second of a device at most, if it is known, with --enable-mfu-metrics.",
    ),
    Described(
        "peak_bytes_per_second_per_gpu",
        "gauge",
        "Bytes per second of a device's memory at most, if it is known, with --enable-mfu-metrics.",
    ),
    Described(
        "kv_block_lifetime_seconds",
        "histogram",
        "Time from handing out a KV page to the eviction of its contents, with --kv-cache-metrics.",
    ),
    Described(
        "kv_block_idle_before_evict_seconds",
        "histogram",
        "Time from the last use of a KV page to the eviction of its contents, with --kv-cache-metrics.",
    ),
    Described(
        "kv_block_reuse_gap_seconds",
        "histogram",
        "Time between two uses of a KV page's contents by requests that found them, with --kv-cache-metrics.",
    ),
    Described("step_seconds", "histogram", "Time of one engine step, from scheduling to outputs."),
    Described(
        "batch_fill",
        "histogram",
        "Share of a step's compiled shape that is filled with tokens, 0 to 1; the rest is padding.",
    ),
)
"""All of them, in the order in which they are exposed. Times are in seconds."""

_LATENCY = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_PER_TOKEN = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_PAGE_LIFE = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1200.0, 1800.0,
)  # fmt: skip
_FILL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_BATCH = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

_FAILURES = ("unreachable", "refused", "timeout", "gone", "damaged", "no_room")

OFFLOAD: Mapping[str, tuple[str, float]] = {
    "external_prefix_cache_queries": ("queries", 1),
    "external_prefix_cache_hits": ("hits", 1),
    "kv_offload_load_bytes": ("load_bytes", 1),
    "kv_offload_load_time": ("load_seconds", 1e6),
    "kv_offload_store_bytes": ("store_bytes", 1),
    "kv_offload_store_time": ("store_seconds", 1e6),
    "kv_offload_stores_skipped": ("dropped", 1),
    "kv_offload_load_failures": ("failures", 1),
    "kv_offload_tiering_chunk_queries": ("disk_queries", 1),
    "kv_offload_tiering_chunk_hits": ("disk_hits", 1),
    "kv_offload_tiering_read_bytes": ("disk_read_bytes", 1),
    "kv_offload_tiering_read_time": ("disk_read_seconds", 1e6),
    "kv_offload_tiering_write_bytes": ("disk_write_bytes", 1),
    "kv_offload_tiering_write_time": ("disk_write_seconds", 1e6),
    "kv_offload_tiering_promotion_job_failures": ("disk_read_failures", 1),
    "kv_offload_tiering_cascade_job_failures": ("disk_write_failures", 1),
    "kv_offload_disk_stores_skipped": ("disk_dropped", 1),
}
"""Counters of `StepStats.offload`: the field of each, and how much of it counts as 1 (times in microseconds)."""

EXTERNAL = "prompt_tokens_external"
"""Counter of prompt tokens that came from other engines, for `prompt_tokens_by_source`."""
FAILED = "kv_transfer_failures_"
TRANSFER: Mapping[str, tuple[tuple[str, ...], float]] = {
    "kv_transfer_requests": (("queries",), 1),
    "kv_transfer_tokens": (("tokens",), 1),
    "kv_transfer_received_bytes": (("bytes",), 1),
    "kv_transfer_receive_time": (("seconds",), 1e6),
    "nixl_num_failed_transfers": (_FAILURES, 1),
    **{FAILED + reason: ((reason,), 1) for reason in _FAILURES},
    "kv_transfer_sent_bytes": (("sent_bytes",), 1),
    "kv_transfer_leases_granted": (("granted",), 1),
    "nixl_num_kv_expired_reqs": (("expired",), 1),
    "kv_transfer_refused_peers": (("refused_peers",), 1),
    "kv_transfer_foreign_messages": (("foreign",), 1),
}
"""Counters of `StepStats.transfer`: the fields of each, and how much of them counts as 1 (times in microseconds)."""
FAILURES = tuple(FAILED + reason for reason in _FAILURES)
"""Those for `kv_transfer_failures`, one for each reason."""

OFFLOAD_SHARES = {"kv_offload_cpu_cache_usage_perc": "usage", "kv_offload_disk_usage_perc": "disk_usage"}
"""Gauges of it, and the field of each."""

OF_ENGINE = frozenset(
    (
        *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "compilations_after_warmup"),
        *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
        *("engine_restarts", "api_server_restarts", "lora_reads", "lora_slot_writes"),
        "kv_events_dropped",
        *OFFLOAD,
        *TRANSFER,
        *("encoder_cache_queries", "encoder_cache_hits"),
        *("iteration_tokens_total", "step_seconds", "batch_fill", "request_num_preemptions"),
        *("kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds"),
    )
)
"""Values that the engine or its supervisor tells; all others are measured of requests."""


WORK = ("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu")
"""Counters of `StepStats.work`, in its order."""
LABELLED = (
    *("request_success", "admission_rejections", "request_timeouts", "spec_decode_num_accepted_tokens_per_pos"),
    "kv_transfer_failures",
    *WORK,
)
"""Counters with a value for each reason or position, and those of numbers too large for an integer."""


def new_histograms(max_model_len: int) -> dict[str, Histogram]:
    """Empty histograms by name. Bounds are vLLM's, with some smaller ones in front for fast models."""
    lengths = _bucket_bounds(max_model_len)
    bounds: dict[str, Sequence[float]] = {
        "iteration_tokens_total": _BATCH,
        "time_to_first_token_seconds": _FIRST_TOKEN,
        "inter_token_latency_seconds": _PER_TOKEN,
        "request_time_per_output_token_seconds": _PER_TOKEN,
        "request_prompt_tokens": lengths,
        "request_prefill_kv_computed_tokens": lengths,
        "request_generation_tokens": lengths,
        "request_max_num_generation_tokens": lengths,
        "request_params_max_tokens": lengths,
        "request_params_n": _N,
        "request_num_preemptions": _PREEMPTIONS,
        "step_seconds": _STEP,
        "engine_loop_lag_seconds": _STEP,
        "batch_fill": _FILL,
        "kv_block_lifetime_seconds": _PAGE_LIFE,
        "kv_block_idle_before_evict_seconds": _PAGE_LIFE,
        "kv_block_reuse_gap_seconds": _PAGE_LIFE,
    }
    names = {metric.source for metric in METRICS if metric.kind == "histogram"}
    return {name: Histogram(bounds.get(name, _LATENCY)) for name in names}


def _bucket_bounds(largest: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`."""
    bounds = (factor * 10**power for power in range(len(str(largest))) for factor in (1, 2, 5))
    return [float(bound) for bound in bounds if bound <= largest]
