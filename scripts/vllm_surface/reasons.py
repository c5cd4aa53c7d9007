"""Why names are absent, as far as their names tell."""

import re

_TRANSFER = "transfer of KV caches between servers, offloading"
_WEIGHTS = "weights come from a folder or as arrays, not from a transfer engine: docs/sleep_and_weights.md"
_MEDIA = "images, sound and video"
_KERNELS = (
    r"triton|cuda|deep_?gemm|aiter|_fla_|_gdn_|_oink|mxfp4|mxfp8|nvfp4|_mla|_moe|fused|kernels|zentorch|tpu_|cudart"
    r"|_p2p|_aot_|bytecode|compile|enable_pregrad|pattern_match|_trtllm|_tma|_ipc|symm_mem|allreduce|marlin|_awq|_fp8"
    r"|sparse_indexer|_fi_|_hw_agnostic|all2all|_quark|_bf16x|float32_matmul|_sm_|dsv4|nvlink|_gemm|_ubatch|_dbo"
    r"|layername|_attn_|_int4|xla_|pynccl"
)
_CONNECTORS = (
    r"kv_offload|kv_transfer|kv_fetch|kv_conn|ec_transfer|disagg|scale_out|inference/v1|kv_event|kvconn|external"
    r"|kvcacheblocks|kvcacheconfig|kv_cache_utils|lmcache|offload|forwardcontext|scheduleroutput|_kv_"
)

_REASONS = (
    (r"checkpoint_prepare|checkpoint_restore|release_kv_cache_memory", "sleep frees memory: docs/sleep_and_weights.md"),
    (r"sharded_?state|ShardedState", "a folder written by LLM.save_sharded_state is read by load_format"),
    (r"tensorizer", "tensorizer: a custom format; see load_format"),
    (r"NGramPerReqLogitsProcessor", _MEDIA),
    (r"nccl|ray|nsight|elastic_ep|deep_?ep|cudagraph|nvtx|rocm|xpu|gpu_|per_gpu|nixl|mooncake|hf3fs|umbp|moriio|hisparse",
     "of another vendor"),
    (r"worker\.gpu", "another vendor: the GPU model runner"),
    (r"flashinfer|marlin|humming|inductor|torch|cutedsl|cohere|sagemaker|batch_invariant",
     "another vendor or other kernels"),
    (_KERNELS, "other kernels or compilers: jaxllm uses XLA"),
    (r"main_cuda_version|precompiled|docker|build_|image_tag|cmake|max_jobs|nvcc", "how vLLM itself is built"),
    (r"lora", "adapters (LoRA)"),
    (_CONNECTORS, _TRANSFER),
    (r"v1\.request:|v1\.executor:", "internals of vLLM: use LLM.collective_rpc to reach the engine"),
    (r"spec_decode|speculative|draft|diffusion|adaptive_verification", "speculative decoding, diffusion"),
    (r"mm_|multimodal|image|audio|video|speech|websocket|realtime|media|assets|vision|encoder_cache", _MEDIA),
    (r"elastic|fault|should_keep_api_server|get_status", "elastic scaling and self-healing servers"),
    (r"sleep_mode_operation", "see http_request_duration_seconds of /sleep and /wake_up"),
    (r"rl_weight_update", "see http_request_duration_seconds of /update_weights"),
    (r"weight", _WEIGHTS),
    (r"collective_rpc|apply_model", "for engines in the process of the caller: LLM has it"),
    (r"kv_block_|corrupted|parser_invocations", "not measured"),
    (r"check_admission|num_queued_tokens", "the server admits requests: --max-num-queued-reqs"),
    (r"decisions|systemone", "vLLM's own interfaces; see /score"),
    (r"late_?chunking", "not supported: token_embed gives the vectors of all tokens"),
    (r"watermark", "watermarks"),
    (r"prompt_embed", "prompt embeddings"),
    (r"^VLLM_(LOG|CONFIGURE_LOG|DEBUG|USAGE|TRACE)", "see --log-level and --log-format; nothing is sent anywhere"),
    (r"routed_experts|sampling_mask|trace", "returned expert routing and traces"),
    (r"benchmarks", "jaxllm bench has them on the command line"),
    (r"repo_utils|modelscope|fastokens|tokenizers", "tokenizers are those of transformers, from the Hub or a folder"),
    (r"(parsers|reasoning)\.(hf|beam)$", "response templates in checkpoints: a separate feature"),
    (r"(parsers|reasoning)\.hy_v4$", "not implemented: marks differ by checkpoint, and none is available to compare"),
    (r"(parsers|reasoning)\.muse", "not implemented: no checkpoint is available for comparison"),
    (r"_dp_|_pp_|_rpc_|_port|host_ip|_nodes|_ranks?(_|$)|_rank_|_executor|ringbuffer|split_group|shm|msgpack|_nixl_",
     "one process drives all devices; hosts meet by --data-parallel-address and JAX"),
    (r"^VLLM_(CACHE|CONFIG)_ROOT", "docs/flags.md has variables for folders of caches"),
    (r"^VLLM_MAX_(N|COMPLETION|STOP|NUM_BAD|BAD)", "bodies and their lists have limits: --max-body-size"),
    (r"^VLLM_", "named in a warning; it has no effect"),
)  # fmt: skip


def reason_for(name: str) -> str:
    """The feature that is missing, as far as the name tells; empty where it does not."""
    return next((reason for pattern, reason in _REASONS if re.search(pattern, name, re.IGNORECASE)), "")
