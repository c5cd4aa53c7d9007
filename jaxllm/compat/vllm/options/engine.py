"""Options of vLLM's engine that jaxllm does not have: which change nothing here, and what to do about the others.

One table for flags and for keywords of `LLM`. Names are flags without dashes at their front.
"""

from collections.abc import Mapping

from jaxllm.compat.vllm.options.noop import NoopOption, lists, off, only, switches, values

_TEXT = "models accept text only"
_ONE_HOST = "one process drives all devices of a host"
_XLA = "XLA compiles and chooses kernels"
_DRAFTS = "a draft is accepted if it is the token that would have been sampled; outputs never change"
_NO_DRAFT_MODEL = "models that draft are not supported yet"
_NO_RECURRENT = "recurrent states have a fixed layout"
_CACHE = "KV pages stay in device memory"
_LOADING = "safetensors files are memory-mapped"

NOOP_OPTIONS: Mapping[str, NoopOption] = {
    **switches("cascade attention is not used", "disable-cascade-attn"),
    **switches("XLA generates the collectives", "disable-custom-all-reduce", "disable-nccl-for-dp-synchronization",
               "enable-nccl-comm-suspend"),
    **switches("requests are logged only by a server with --enable-log-requests", "disable-log-requests"),
    **switches("offline, statistics are not logged", "disable-log-stats"),
    **switches("prefill is always chunked", "enable-chunked-prefill", "disable-chunked-mm-input",
               "scheduler-reserve-full-isl", "long-prefill-token-threshold-adaptive"),
    **values("CUDA graphs are not used", "max-seq-len-to-capture", "max-context-len-to-capture",
             "max-cudagraph-capture-size", "cuda-graph-sizes"),
    **switches("CUDA graphs are not used", "cudagraph-metrics"),
    **values("steps are scheduled one at a time", "num-scheduler-steps", "prefill-schedule-interval",
             "scheduler-delay-factor", "dp-sync-interval"),
    **switches("outputs are always processed concurrently with steps", "disable-async-output-proc"),
    **values("preempted requests are always recomputed", "preemption-mode", "watermark"),
    **values("preempted requests are recomputed, not swapped", "swap-space"),
    **values("the fast tokenizer is always used", "tokenizer-pool-size", "tokenizer-pool-type",
             "tokenizer-pool-extra-config", "renderer-num-workers"),
    **only(("auto", "hf", "fast"), "the fast tokenizer of the model's folder is always used", "tokenizer-mode"),
    **switches("code from model repositories is never run", "trust-remote-code"),
    **values("code from model repositories is never run", "code-revision"),
    **switches("there is one block manager", "use-v2-block-manager"),
    **values(_XLA, "compilation-config/cc", "ir-op-priority",
             "sparse-indexer-topk-backend", "gdn-prefill-backend", "kda-prefill-backend",
             "kda-decode-backend", "performance-mode"),
    **only(({},), "no platform has options of its own; omit it", "additional-config"),
    **switches(_XLA, "enable-flashinfer-autotune", "enable-layerwise-nvtx-tracing", "use-fp64-gumbel"),
    **values("any compilation after start-up is a bug, and is logged", "jit-monitor-mode"),
    **values("grammars are compiled by llguidance", "guided-decoding-backend"),
    # Weights
    **values(_LOADING, "safetensors-load-strategy", "safetensors-prefetch-num-threads",
             "safetensors-prefetch-block-size", "pt-load-map-location",
             "max-parallel-loading-workers"),
    **switches(_LOADING, "use-tqdm-on-load", "allow-deprecated-quantization"),
    **only(({},), "weights are read from safetensors; omit it", "model-loader-extra-config"),
    **only((), "a checkpoint declares its quantization in config.json; to quantize others use --quantization",
           "quantization-config", "qlora-adapter-name-or-path"),
    **values("scales are read from the checkpoint", "quantization-param-path"),
    **only(("auto",), "models are registered as described in docs/add-a-model.md", "model-impl", "config-format"),
    **only(({},), "override single values with --hf-overrides", "model-class-overrides", "hf-config-path"),
    **values("--enable-sleep-mode needs no further option", "sleep-mode-backend"),
    **switches("--enable-sleep-mode needs no further option", "sleep-mode-offload-cudagraph", "enable-cumem-allocator"),
    # Devices and hosts
    **only((1,), "one replica runs on one host: use --tensor-parallel-size, or several servers behind a load balancer",
           "decode-context-parallel-size/dcp", "prefill-context-parallel-size/pcp"),
    **only((), "select devices with CUDA_VISIBLE_DEVICES or TPU_VISIBLE_CHIPS", "device-ids"),
    **values(_ONE_HOST, "cpu-distributed-timeout-seconds", "dcp-comm-backend", "dcp-kv-cache-interleave-size",
             "cp-kv-cache-interleave-size", "all2all-backend", "ubatch-size", "elastic-ep-max-dp-size",
             "dbo-decode-token-threshold", "dbo-prefill-token-threshold", "eplb-config", "expert-placement-strategy",
             "fault-tolerance-config"),
    **switches(_ONE_HOST, "numa-bind",
               "data-parallel-multi-port-external-lb/dpm", "dcp-q-replicate", "enable-hc-sp",
               "enable-batch-sharded-sampling", "enable-ep-weight-filter", "enable-dbo", "enable-shm-tensor-arena",
               "enable-elastic-ep", "enable-eplb", "ray-workers-use-nsight", "engine-use-ray", "worker-use-ray",
               "enable-fault-tolerance"),
    **only(("auto", ""), "requests and models cannot contain code", "worker-cls", "worker-extension-cls",
           "scheduler-cls", "io-processor-plugin"),
    # Cache
    **off("scales come from the checkpoint; --kv-cache-dtype int8 computes them per token and head",
          "calculate-kv-scales"),
    **values(_CACHE, "prefix-caching-hash-algo", "prefix-match-unit", "offload-prefetch-step",
             "offload-num-in-group"),
    **only(("native",), "host copies of pages are jaxllm's own; omit it", "kv-offloading-backend"),
    **switches(_CACHE, "kv-sharing-fast-prefill", "swa-bounded-replay", "use-replayssm"),
    **only((0,), "nothing is offloaded to host memory; lower --max-model-len or --max-num-seqs", "cpu-offload-gb",
           "offload-group-size"),
    **only(("auto",), "nothing is offloaded to host memory", "offload-backend"),
    **values(_NO_RECURRENT, "mamba-backend", "mamba-ssu-algorithm", "mamba-cache-philox-rounds", "mamba-cache-dtype",
             "mamba-ssm-cache-dtype", "mamba-cache-mode", "replayssm-buffer-len", "engram-config"),
    **only(({},), _NO_RECURRENT, "mamba-config"),
    **switches(_NO_RECURRENT, "enable-mamba-cache-stochastic-rounding", "enable-mamba-shared-prefix-checkpoint"),
    **only(({},), "transfer of weights or encoded images between servers is not supported", "ec-transfer-config",
           "ec-manager-config", "weight-transfer-config"),
    # Images and sound
    **values(_TEXT, "allowed-local-media-path", "media-io-kwargs",
             "mm-processor-kwargs", "mm-processor-cache-gb", "mm-processor-cache-type", "mm-hasher-algorithm",
             "mm-shm-cache-max-object-size-mb", "mm-encoder-tp-mode",
             "mm-encoder-attn-dtype", "mm-encoder-fp8-scale-path", "mm-encoder-fp8-scale-save-path",
             "mm-encoder-fp8-scale-save-margin", "video-pruning-rate", "video-pruning-method", "mm-tensor-ipc",
             "mm-processor-device", "mm-ipc-gpu-memory-gb"),
    **switches(_TEXT, "enable-mm-embeds", "mm-encoder-only", "interleave-mm-strings",
               "skip-mm-profiling", "mm-device-do-normalize", "disable-mm-preprocessor-cache"),
    # Adapters
    **values("adapters are for the linear layers of models that read text", "lora-extra-vocab-size",
             "long-lora-scaling-factors"),
    **switches("adapters are for the linear layers of models that read text", "enable-tower-connector-lora",
               "enable-moe-shared-loras"),
    **switches("adapters of routed experts are read in either form", "enable-mixed-moe-lora-format"),
    **switches("how adapters are split and multiplied follows from the mesh and the batch", "fully-sharded-loras",
               "specialize-active-lora"),
    # Drafts
    **values(_DRAFTS, "num-lookahead-slots", "spec-decoding-acceptance-method",
             "typical-acceptance-sampler-posterior-threshold", "typical-acceptance-sampler-posterior-alpha"),
    **values(_NO_DRAFT_MODEL, "speculative-draft-tensor-parallel-size", "speculative-max-model-len"),
    # Requests and results
    **off("not supported", "enable-return-routed-experts", "return-sampling-mask", "enable-trace-replay"),
    **only(({},), "not supported", "watermark-config", "diffusion-config/dc", "aux-output-config"),
    # Logs and measurements
    **values("docs/metrics.md lists the metrics", "show-hidden-metrics-for-version", "otlp-traces-endpoint",
             "custom-histogram-buckets", "watchdog-config"),
    **switches("docs/metrics.md lists the metrics", "enable-logging-iteration-details", "aggregate-engine-logging",
               "fail-on-environ-validation"),
    **values("--log-level and --log-format apply to all log lines", "log-config-file"),
    # Several values
    **lists(_TEXT, "allowed-media-domains"),
    **lists("sleep keeps or discards all weights; see docs/sleep_and_weights.md", "sleep-preserve-parameter-names"),
    **lists(_LOADING, "ignore-patterns"),
    **lists(_ONE_HOST, "numa-bind-nodes", "numa-bind-cpus"),
    **only(([], ()), "--kv-cache-dtype applies to all layers", "kv-cache-dtype-skip-layers"),
    **lists(_CACHE, "cpu-offload-params", "offload-params"),
    **lists("docs/metrics.md lists the metrics", "collect-detailed-traces"),
    **lists("CUDA graphs are not used", "cudagraph-capture-sizes"),
    **switches(_XLA, "monokernel"),
    **switches("any compilation after start-up is a bug, and is logged", "jit-monitor-verbose"),
}  # fmt: skip
"""Options of the engine, by name. `serving.options` has those of the server."""

OF_SCRIPTS: Mapping[str, NoopOption] = {
    **NOOP_OPTIONS,
    **lists("requests of a script do not name a model", "served-model-name"),
    **values("a script configures logging itself", "log-level", "log-format"),
    **values("a script receives the text as the model writes it", "reasoning-parser", "reasoning-parser-plugin",
             "tool-call-parser", "tool-parser-plugin"),
    **switches("a script knows its requests", "enable-log-requests"),
    **values("a script waits for all of its requests", "shutdown-timeout", "max-num-queued-reqs",
             "max-num-queued-tokens"),
    **values("there is one server process", "api-server-count"),
    **only(("",), "weights are read from the folder of --model", "model-weights"),
    **off("not supported", "tokens-only", "enable-mm-processor-stats"),
}  # fmt: skip
"""As keywords of `LLM`: some options of servers as well, which vLLM's `EngineArgs` has."""
