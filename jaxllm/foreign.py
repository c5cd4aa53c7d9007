"""Options of vLLM's engine that jaxllm does not have: which change nothing here, and what to do about the others.

One table for flags and for keywords of `LLM`. Names are flags without dashes at their front.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxllm.errors import ConfigError


class Meaningless(NamedTuple):
    """An option of vLLM's that is accepted, so that a command line or a script can be carried over.

    It changes nothing, for this `reason`; or if there are `neutral` values, only these change nothing, any other is an
    error, and `reason` says what to do. `short` is another name of the flag, with one dash.
    """

    takes_value: bool
    reason: str
    neutral: tuple[Any, ...] | None = None
    short: str = ""

    def accepts(self, value: Any) -> bool:
        """Whether this value, as text or as it is, changes nothing."""
        if self.neutral is None or value is None:
            return True
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None if value.lower() == "none" else value
        return value is None or value in self.neutral


def drop_meaningless(
    options: Mapping[str, Any], table: Mapping[str, Meaningless], say: Callable[[str], None]
) -> dict[str, Any]:
    """The options without those of the table; `say` is told, in a line, of each that was asked for and changes nothing.

    Names have underscores. Raises `ConfigError` for a value that would change something.
    """
    kept = {}
    for name, value in options.items():
        known = table.get(name.replace("_", "-"))
        if known is None:
            kept[name] = value
        elif not known.accepts(value):
            raise ConfigError(f"{name}={value!r}: {known.reason}")
        elif value not in (None, False) and known.neutral is None:
            say(f"{name} has no effect: {known.reason}")
    return kept


def values(reason: str, *names: str) -> dict[str, Meaningless]:
    """Flags with a value, none of which changes anything."""
    return {name: Meaningless(True, reason) for name in names}


def switches(reason: str, *names: str) -> dict[str, Meaningless]:
    """Flags without a value that change nothing."""
    return {name: Meaningless(False, reason) for name in names}


def only(neutral: Iterable[Any], advice: str, *names: str) -> dict[str, Meaningless]:
    """Flags of which only these values change nothing; a name may be followed by its short form: `nnodes/n`."""
    found = {}
    for name, _, short in (each.partition("/") for each in names):
        found[name] = Meaningless(True, advice, tuple(neutral), short)
    return found


def off(advice: str, *names: str) -> dict[str, Meaningless]:
    """Flags without a value that must stay off."""
    return {name: Meaningless(False, advice, (False,)) for name in names}


_TEXT = "models read text only"
_ONE_HOST = "one process drives all devices of one host"
_XLA = "XLA compiles and chooses kernels"
_NO_DRAFTS = "tokens are not guessed ahead; the outputs are the same without"
_NO_ADAPTERS = "there are no adapters (LoRA)"
_NO_RECURRENT = "states of recurrent layers have one form"
_CACHE = "KV pages stay in device memory"
_LOADING = "safetensors are mapped into memory"

MEANINGLESS: Mapping[str, Meaningless] = {
    **switches("there is no cascade attention", "disable-cascade-attn"),
    **switches("XLA makes the collectives", "disable-custom-all-reduce", "disable-nccl-for-dp-synchronization",
               "enable-nccl-comm-suspend"),
    **switches("requests are logged only by a server with --enable-log-requests", "disable-log-requests"),
    **switches("offline, statistics are not logged", "disable-log-stats"),
    **switches("prefill is always chunked", "enable-chunked-prefill", "disable-chunked-mm-input",
               "scheduler-reserve-full-isl", "long-prefill-token-threshold-adaptive"),
    **values("there are no CUDA graphs", "max-seq-len-to-capture", "max-context-len-to-capture",
             "cudagraph-capture-sizes", "max-cudagraph-capture-size", "cuda-graph-sizes"),
    **switches("there are no CUDA graphs", "cudagraph-metrics"),
    **values("steps are scheduled one at a time", "num-scheduler-steps", "prefill-schedule-interval",
             "scheduler-delay-factor", "dp-sync-interval"),
    **switches("outputs are always processed beside the steps", "disable-async-output-proc"),
    **values("preempted requests are always recomputed", "preemption-mode", "watermark"),
    **values("preempted requests are recomputed, not swapped", "swap-space"),
    **values("the fast tokenizer is always used", "tokenizer-mode", "tokenizer-pool-size", "tokenizer-pool-type",
             "tokenizer-pool-extra-config", "renderer-num-workers"),
    **switches("code from model repositories is never run", "trust-remote-code"),
    **values("code from model repositories is never run", "code-revision"),
    **switches("there is one block manager", "use-v2-block-manager"),
    **values(_XLA, "compilation-config", "attention-config", "kernel-config", "ir-op-priority",
             "linear-backend", "sparse-indexer-topk-backend", "gdn-prefill-backend", "kda-prefill-backend",
             "kda-decode-backend", "performance-mode", "additional-config", "monokernel"),
    **switches(_XLA, "enable-flashinfer-autotune", "enable-layerwise-nvtx-tracing", "use-fp64-gumbel"),
    **values("compilation after the start is a bug, and logged", "jit-monitor-mode", "jit-monitor-verbose"),
    **values("grammars are compiled by llguidance", "guided-decoding-backend"),
    # Weights
    **values(_LOADING, "safetensors-load-strategy", "safetensors-prefetch-num-threads",
             "safetensors-prefetch-block-size", "ignore-patterns", "pt-load-map-location",
             "max-parallel-loading-workers"),
    **switches(_LOADING, "use-tqdm-on-load", "allow-deprecated-quantization"),
    **only(({},), "weights are read from safetensors; leave it out", "model-loader-extra-config"),
    **only((), "what a checkpoint is quantised to is in its config.json; see --quantization for others",
           "quantization-config", "qlora-adapter-name-or-path"),
    **values("scales are read from the checkpoint", "quantization-param-path"),
    **only(("auto",), "models are those of docs/add-a-model.md", "model-impl", "config-format"),
    **only(({},), "edit the model's config.json instead", "model-class-overrides", "rope-scaling",
           "rope-theta", "hf-config-path"),
    **only((False,), "set the environment variable HF_TOKEN instead", "hf-token"),
    **only((), "--revision is for model and tokenizer; give --tokenizer a local folder", "tokenizer-revision"),
    **only(("auto",), "say --runner generate or --runner pooling", "task"),
    **off("set --max-model-len to the window instead", "disable-sliding-window"),
    **off("give prompts as token ids; LLM has skip_tokenizer_init", "skip-tokenizer-init"),
    **off("prompts are text or token ids", "enable-prompt-embeds"),
    **off("not supported; end the server to free its memory", "enable-sleep-mode"),
    **values("there is no sleep mode", "sleep-mode-backend", "sleep-preserve-parameter-names"),
    **switches("there is no sleep mode", "sleep-mode-offload-cudagraph", "enable-cumem-allocator"),
    # Devices and hosts
    **only((1,), "one replica runs on one host: use --tensor-parallel-size, or several servers behind a balancer",
           "decode-context-parallel-size/dcp", "prefill-context-parallel-size/pcp"),
    **only((), "make devices visible with CUDA_VISIBLE_DEVICES or TPU_VISIBLE_CHIPS", "device-ids"),
    **values(_ONE_HOST, "cpu-distributed-timeout-seconds", "numa-bind-nodes", "numa-bind-cpus",
             "dcp-comm-backend", "dcp-kv-cache-interleave-size",
             "cp-kv-cache-interleave-size", "all2all-backend", "ubatch-size", "elastic-ep-max-dp-size",
             "dbo-decode-token-threshold", "dbo-prefill-token-threshold", "eplb-config", "expert-placement-strategy",
             "fault-tolerance-config"),
    **switches(_ONE_HOST, "numa-bind",
               "data-parallel-multi-port-external-lb", "dcp-q-replicate", "enable-hc-sp",
               "enable-batch-sharded-sampling", "enable-ep-weight-filter", "enable-dbo", "enable-shm-tensor-arena",
               "enable-elastic-ep", "enable-eplb", "ray-workers-use-nsight", "engine-use-ray", "worker-use-ray",
               "enable-fault-tolerance"),
    **only(("auto", ""), "requests and models cannot bring code", "worker-cls", "worker-extension-cls",
           "scheduler-cls", "io-processor-plugin"),
    **only(([], ()), "requests and models cannot bring code", "logits-processors"),
    # Cache
    **off("scales are those of the checkpoint; --kv-cache-dtype int8 finds some for each token and head",
          "calculate-kv-scales"),
    **values(_CACHE, "prefix-caching-hash-algo", "prefix-cache-retention-interval", "kv-cache-dtype-skip-layers",
             "prefix-match-unit", "kv-offloading-backend", "cpu-offload-params", "offload-prefetch-step",
             "offload-params", "offload-num-in-group"),
    **switches(_CACHE, "kv-sharing-fast-prefill", "swa-bounded-replay", "use-replayssm"),
    **only((0,), "nothing is moved to host memory; lower --max-model-len or --max-num-seqs", "cpu-offload-gb",
           "kv-offloading-size", "offload-group-size"),
    **only(("auto",), "nothing is moved to host memory", "offload-backend"),
    **values(_NO_RECURRENT, "mamba-backend", "mamba-ssu-algorithm", "mamba-cache-philox-rounds", "mamba-cache-dtype",
             "mamba-ssm-cache-dtype", "mamba-cache-mode", "replayssm-buffer-len", "engram-config"),
    **switches(_NO_RECURRENT, "enable-mamba-cache-stochastic-rounding", "enable-mamba-shared-prefix-checkpoint"),
    **only(({},), "there is no transfer of KV caches or weights between servers", "kv-transfer-config",
           "kv-events-config", "ec-transfer-config", "ec-manager-config", "weight-transfer-config"),
    # Images and sound
    **values(_TEXT, "allowed-local-media-path", "allowed-media-domains", "limit-mm-per-prompt", "media-io-kwargs",
             "mm-processor-kwargs", "mm-processor-cache-gb", "mm-processor-cache-type", "mm-hasher-algorithm",
             "mm-shm-cache-max-object-size-mb", "mm-encoder-tp-mode", "mm-encoder-attn-backend",
             "mm-encoder-attn-dtype", "mm-encoder-fp8-scale-path", "mm-encoder-fp8-scale-save-path",
             "mm-encoder-fp8-scale-save-margin", "video-pruning-rate", "video-pruning-method", "mm-tensor-ipc",
             "mm-processor-device", "mm-ipc-gpu-memory-gb"),
    **switches(_TEXT, "language-model-only", "enable-mm-embeds", "mm-encoder-only", "interleave-mm-strings",
               "skip-mm-profiling", "mm-device-do-normalize", "disable-mm-preprocessor-cache"),
    # Adapters
    **off("adapters (LoRA) are not supported; serve a checkpoint into which they are merged", "enable-lora"),
    **values(_NO_ADAPTERS, "max-loras", "max-lora-rank", "lora-dtype", "max-cpu-loras", "lora-target-modules",
             "default-mm-loras", "max-lora-cls-labels", "lora-extra-vocab-size", "long-lora-scaling-factors"),
    **switches(_NO_ADAPTERS, "enable-tower-connector-lora", "fully-sharded-loras", "specialize-active-lora",
               "enable-mixed-moe-lora-format", "enable-moe-shared-loras"),
    # Drafts
    **values(_NO_DRAFTS, "speculative-config", "spec-method", "spec-model", "spec-tokens", "speculative-model",
             "num-speculative-tokens", "num-lookahead-slots", "ngram-prompt-lookup-max", "ngram-prompt-lookup-min",
             "speculative-draft-tensor-parallel-size", "speculative-max-model-len",
             "speculative-disable-by-batch-size", "spec-decoding-acceptance-method",
             "typical-acceptance-sampler-posterior-threshold", "typical-acceptance-sampler-posterior-alpha"),
    # Requests and results
    **only(("raw_logprobs",), "log-probabilities are those of the model's own logits", "logprobs-mode"),
    **off("not supported", "enable-return-routed-experts", "return-sampling-mask", "enable-trace-replay"),
    **only(({},), "not supported", "watermark-config", "diffusion-config", "aux-output-config", "reasoning-config"),
    **only(({}, {"backend": "auto"}), "say --structured-outputs-backend, --reasoning-parser, --disable-any-whitespace",
           "structured-outputs-config"),
    **only((), "say --max-num-batched-tokens", "max-num-scheduled-tokens"),
    **only((), "say --max-num-seqs", "max-num-active-seqs"),
    **values("tokens are sent as they come", "stream-interval"),
    # Logs and measurements
    **values("see docs/metrics.md for what is measured", "show-hidden-metrics-for-version", "otlp-traces-endpoint",
             "collect-detailed-traces", "kv-cache-metrics-sample", "custom-histogram-buckets", "profiler-config",
             "watchdog-config"),
    **switches("see docs/metrics.md for what is measured", "per-request-spec-decode-metrics", "kv-cache-metrics",
               "enable-mfu-metrics", "enable-logging-iteration-details", "aggregate-engine-logging",
               "fail-on-environ-validation"),
    **values("--log-level and --log-format are for all that is logged", "logging-config", "log-config-file"),
}  # fmt: skip
"""Of the engine, by name. `serving.options` has those of the server."""
