"""Which files of tests come first: those that take long, so that no process is left alone with one at the end."""

LONG_SLOW = (
    "benchmarks/test_tpu_steps.py",
    "benchmarks/test_tpu_quantized_steps.py",
    "benchmarks/test_tpu_recurrent.py",
    "benchmarks/test_tpu_sampling.py",
    "benchmarks/test_tpu_static.py",
    "benchmarks/test_tpu_tune.py",
    "benchmarks/test_soak.py",
    "pallas_kernels/paged_attention/tpu/test_compile.py",
    "pallas_kernels/paged_attention/tpu/test_numerics.py",
    "pallas_kernels/paged_attention/tpu/test_short_rows.py",
    "pallas_kernels/paged_attention/gpu/test_numerics.py",
    "jaxllm/executor/test_tpu_step.py",
    "jaxllm/executor/test_tpu_groups.py",
    "jaxllm/executor/test_tpu_narrow_heads.py",
    "serving/cli/test_tpu_compile.py",
    "docs/test_examples.py",
    "e2e/parallel/test_ray.py",
    "e2e/parallel/test_hosts.py",
    "e2e/parallel/test_stages.py",
    "e2e/test_families.py",
)
"""Of `scripts/test --slow`."""

LONG = (
    "e2e/images/test_spans.py",
    "e2e/sound/test_engine_sound.py",
    "e2e/sound/test_sound_options.py",
    "models/towers/test_sound.py",
    "e2e/test_recurrent_drafts.py",
    "e2e/serving/test_api_servers.py",
    "e2e/parallel/test_tensor_parallel.py",
    "models/families/test_decoders.py",
    "models/test_expert_families.py",
    "models/checkpoint/test_load_memory.py",
    "e2e/test_faults.py",
    "e2e/serving/test_restarts.py",
    "pallas_kernels/paged_attention/triton/test_numerics.py",
    "pallas_kernels/paged_attention/test_paged_attention.py",
    "e2e/test_same_tokens.py",
    "models/test_stack.py",
    "e2e/sound/test_transcriptions.py",
    "serving/server/test_server.py",
    "e2e/test_cache_groups.py",
    "e2e/images/test_families.py",
    "models/test_families.py",
    "serving/openai/test_clients.py",
    "serving/openai/test_extremes.py",
    "serving/openai/test_openapi.py",
    "pallas_kernels/linear/test_quantized.py",
    "pallas_kernels/paged_attention/test_cpu.py",
    "pallas_kernels/latent_attention/test_tpu.py",
    "e2e/text/test_sleep_and_weights.py",
    "serving/ipc/client/test_survival.py",
    "models/test_recurrent_families.py",
    "e2e/images/test_qwen_images.py",
    "e2e/images/test_qwen_variants.py",
    "e2e/images/test_qwen_drafts.py",
    "models/towers/test_grid_vision.py",
    "models/test_gemma_families.py",
    "e2e/text/test_generate_command.py",
    "serving/llm/test_data_parallel.py",
    "models/families/test_published_decoders.py",
    "e2e/serving/test_processes.py",
    "e2e/serving/test_data_parallel.py",
    "serving/pooling/test_tenants.py",
    "serving/openai/files/test_files.py",
    "serving/media/image_processors/test_against_transformers.py",
    "serving/bench/test_load.py",
    "serving/media/test_checkpoint.py",
    "serving/media/test_decode.py",
    "serving/pooling/test_http.py",
    "serving/telemetry/test_http.py",
)
"""Of `scripts/test`: each takes more than a hundredth of a process's time."""

_PLACES = {f"tests/{name}": place for place, name in enumerate((*LONG_SLOW, *LONG))}


def place_of(nodeid: str) -> int:
    """The place of a test's file, by the test's id; the same for all that take little time."""
    return _PLACES.get(nodeid.partition("::")[0], len(_PLACES))
