"""From options to the resolved configuration: the model and devices are found, and what is left open is chosen."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import jax

from jaxllm.config import EngineConfig, ModelOptions
from jaxllm.errors import ConfigError
from jaxllm.executor.adapter_shape import adapter_shape
from jaxllm.executor.devices import data_shards, devices_of_all, local_devices, split_over, tensor_parallel_size
from jaxllm.executor.image_sizes import with_images, with_whole_spans
from jaxllm.executor.kernels.operation import Workload
from jaxllm.executor.kernels.select import select_kernels
from jaxllm.executor.kv_type import choose_kv_cache
from jaxllm.executor.model_files import model_folder
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.sound_windows import with_sound
from jaxllm.executor.step_size import usual_step_sizes
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.registry import lookup
from jaxllm.models.kv_shape import FEWEST_TOKENS
from jaxllm.models.kv_type import KVCacheType

if TYPE_CHECKING:
    from jaxllm.models.drafters.plan import DrafterPlan

logger = logging.getLogger(__name__)

PAGE_SIZES = {"tpu": 64}
"""With one KV head on a device, starting a copy for every 16 tokens takes a decode on a TPU half of its bandwidth."""
OTHER_PAGE_SIZE = 16


def resolve_config(
    config: EngineConfig,
    absent_devices: Sequence[jax.Device] | None = None,
    *,
    runner: Literal["generate", "pooling"] = "generate",
    processes: int = 1,
) -> ResolvedConfig:
    """Find the model and settle what the options leave open, for an engine that generates or one that pools.

    `absent_devices` are those of a topology that is not there (`jax.experimental.topologies`): the result serves to
    compile for them. `processes` of `jax.distributed` make the engine, with all their devices.

    Raises:
        ConfigError: the model cannot be found or read, or an option does not suit it or the devices.
    """
    if absent_devices is not None:
        # The compiler for TPUs that are not there crashes now and then when two threads use it (libtpu 0.0.42).
        config = replace(config, compile=replace(config.compile, compile_workers=1))
    count, shards = tensor_parallel_size(config.parallel) or 1, data_shards(config.parallel)
    stages = config.parallel.pipeline_parallel_size
    try:
        folder = model_folder(config.model, weights=True)
        model = _quantized(read_config(folder, config.model.hf_overrides), config.model.quantization)
        if runner == "generate":
            _check_generates(config.model.runner, model)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    if shards > 1 and processes > 1:
        raise ConfigError(f"mesh: data={shards}: data shards must be on one host; omit data")
    devices = _devices(config, stages * shards * count, processes) if absent_devices is None else absent_devices
    platform = devices[0].platform
    page_size = config.cache.block_size or PAGE_SIZES.get(platform, OTHER_PAGE_SIZE)
    dtype = _choose_dtype(config.model.dtype, model, platform)
    kv_cache = None
    if runner == "generate":
        kv_cache = choose_kv_cache(config, folder, model, dtype=dtype, platform=platform)
    _check_chunks(model, page_size)
    _check_groups(model, page_size)
    if config.model.enable_prompt_embeds:
        _check_embeddings(model, runner, stages, processes)
    if runner == "generate":
        _check_drafts(config, model, stages)
    else:
        _check_pooling(config)
    has_images = _takes_images(config, model, runner)
    workload = Workload(
        devices[0],
        model,
        page_size,
        kv_cache or KVCacheType(dtype),
        sees_spans=has_images and model.sees_spans,
        dtype=dtype,
    )
    drafter, drafter_folder = _drafter(config, workload, dtype)
    step = usual_step_sizes(platform, runner)[0].chosen(config.scheduler)
    resolved = ResolvedConfig(
        config=config,
        folder=folder,
        model=model,
        platform=platform,
        kernels=select_kernels(config.compile, workload),
        device_kind=devices[0].device_kind,
        mesh=split_over(
            model,
            devices,
            count,
            absent=absent_devices is not None,
            expert_parallel=config.parallel.enable_expert_parallel,
            shards=shards,
        ),
        dtype=dtype,
        max_model_len=_choose_length(config.model, model),
        max_num_seqs=step.requests,
        max_num_batched_tokens=step.tokens,
        page_size=page_size,
        kv_cache=kv_cache,
        attention_checks=config.compile.attention_checks,
        processors=_load_processors(config, runner, stages, processes),
        adapters=adapter_shape(config, dtype),
        drafter=drafter,
        drafter_folder=drafter_folder,
    )
    resolved = _with_media(resolved, runner, stages, has_images=has_images, is_multihost=processes > 1)
    if config.lora.lora_target_modules and runner == "generate":
        # Seldom given: starts of others are faster without the import.
        from jaxllm.executor.adapter_targets import with_generative_targets

        resolved = with_generative_targets(resolved)
    if stages == 1:
        return resolved
    # Most engines have one: starts are faster without the import.
    from jaxllm.executor.pipeline.stages import assign_pipeline_stages

    return assign_pipeline_stages(resolved, devices, runner=runner, processes=processes)


def _quantized(model: ModelConfig, method: str | None) -> ModelConfig:
    """The model as it is to be rounded while it is read, if so. A method may also be that of its checkpoint."""
    if method is None or method == model.weight_method:
        return model
    # Few models are rounded: starts of others are faster without the import.
    from jaxllm.models.quantization.online import METHODS, quantized

    if method not in METHODS and model.weight_method is None:
        raise ModelError(
            f"quantization={method!r}: the checkpoint is not quantized; choose one of {', '.join(METHODS)} to "
            "quantize it while loading, or omit quantization"
        )
    if model.weight_method is not None:
        raise ModelError(
            f"quantization={method!r}: the checkpoint is quantized with {model.weight_method!r}, which needs no flag; "
            "omit quantization"
        )
    family = lookup(model.architecture)
    if family.make_encoder is not None:
        raise ModelError(f"quantization={method!r}: encoders such as {model.architecture} cannot be quantized")
    return quantized(model, family.names_of(model), method)


def _load_processors(config: EngineConfig, runner: str, stages: int, processes: int) -> tuple[type, ...]:
    names = config.output.logits_processors
    if not names:
        return ()
    if runner == "pooling":
        raise ConfigError("logits_processors: pooling models sample no tokens; omit it")
    if stages > 1 or processes > 1:
        where = f"pipeline_parallel_size={stages}" if stages > 1 else "engines on several hosts"
        raise ConfigError(f"logits_processors: not supported by {where}; use tensor_parallel_size on one host")
    # Most engines have none: starts are faster without the import.
    from jaxllm.processors.loading import load_classes

    return load_classes(names)


def _check_pooling(config: EngineConfig) -> None:
    """Raise `ConfigError` for options that mean nothing to a pooling model."""
    if config.speculation.drafting is not None:
        raise ConfigError("speculative_config: pooling models generate no tokens; omit it")
    if config.cache.kv_events is not None:
        raise ConfigError("kv_events_config: pooling models have no KV cache; omit it")
    if config.cache.kv_transfer is not None:
        raise ConfigError("kv_transfer_config: pooling models have no KV cache; omit it")
    if config.cache.kv_offloading_size:
        raise ConfigError("kv_offloading_size: pooling models have no KV cache; omit it")
    if config.cache.kv_offloading_path is not None:
        raise ConfigError("kv_offloading_path: pooling models have no KV cache; omit it")


def _takes_images(config: EngineConfig, model: ModelConfig, runner: str) -> bool:
    """Whether requests may have images, or sound in place of tokens, and the engine is not of text alone."""
    # Of sound, nothing is pooled.
    hears = runner == "generate" and model.sound is not None and not model.has_cross_attention
    if (model.tower is None and not hears) or config.images.language_model_only:
        return False
    stages = config.parallel.pipeline_parallel_size
    if stages > 1 and model.tower is not None and model.tower.row_parts > 1:
        # They are added after the first layers, which may be in another stage.
        logger.warning("images are refused: rows of several parts need one stage, not %d", stages)
        return False
    return True


def _with_media(
    resolved: ResolvedConfig, runner: str, stages: int, *, has_images: bool, is_multihost: bool
) -> ResolvedConfig:
    """The configuration with room for what requests may have of images and sound. Raises `ConfigError`."""
    if not has_images:
        has_sound = resolved.model.has_cross_attention
        return with_sound(resolved, runner, stages, is_multihost=is_multihost) if has_sound else resolved
    # Who pools reads prompts whole.
    resolved = with_images(resolved)
    return with_whole_spans(resolved) if runner == "generate" else resolved


def _check_drafts(config: EngineConfig, model: ModelConfig, stages: int) -> None:
    if config.speculation.drafting is None:
        return
    if stages > 1:
        raise ConfigError(
            f"speculative_config: not supported with pipeline_parallel_size={stages}, where several steps are under "
            "way at once; omit it"
        )


def _drafter(config: EngineConfig, workload: Workload, dtype: str) -> "tuple[DrafterPlan | None, Path | None]":
    drafting = config.speculation.drafting
    if drafting is None or not drafting.on_device:
        return None, None
    # Few engines have one: starts of others are faster without the import.
    from jaxllm.executor.drafter_plan import plan_drafter

    return plan_drafter(config, workload, dtype)


def _devices(config: EngineConfig, count: int, processes: int) -> Sequence[jax.Device]:
    return local_devices(config, count) if processes == 1 else devices_of_all(config, count, processes)


def _check_generates(asked: str, model: ModelConfig) -> None:
    architecture = model.architecture
    if asked == "pooling":
        raise ModelError("runner='pooling' does not apply here: only generative models are prepared this way")
    made_for = lookup(architecture).use
    if made_for != "generate":
        raise ModelError(
            f"{architecture} is not a generative model, it is made to {made_for}: omit runner, or pass --runner pooling"
        )
    if not model.is_causal:
        raise ModelError(
            f"this {architecture} is not a generative model, its tokens attend to later ones: omit runner, or pass "
            f"--runner pooling"
        )


def _check_chunks(model: ModelConfig, page_size: int) -> None:
    chunk = next((layer.attention.chunk for layer in model.layers if layer.attention.chunk % page_size), None)
    if chunk is not None:
        raise ConfigError(
            f"block_size={page_size}: must divide the attention chunk of {chunk} tokens; give a divisor of {chunk}, "
            "or omit block_size"
        )


def _check_groups(model: ModelConfig, page_size: int) -> None:
    rates = {plan.compression.rate for plan in model.compressed if plan.compression is not None}
    wrong = next((rate for rate in sorted(rates) if page_size % rate and rate % page_size), None)
    if wrong is not None or (rates and page_size < FEWEST_TOKENS):
        needed = f"at least {FEWEST_TOKENS}" + ("" if wrong is None else f", and a divisor or a multiple of {wrong}")
        raise ConfigError(
            f"block_size={page_size}: must be {needed}, because cache entries of {model.architecture} stand for groups "
            "of tokens; or omit block_size"
        )


def _check_embeddings(model: ModelConfig, runner: str, stages: int, processes: int) -> None:
    embedding, problem = model.embedding, None
    if runner == "pooling":
        problem = "pooling models do not support them"
    elif stages > 1 or processes > 1:
        where = f"pipeline_parallel_size={stages}" if stages > 1 else "engines on several hosts"
        problem = f"not supported by {where}; use tensor_parallel_size on one host"
    elif model.routes_by_token:
        problem = f"layers of {model.architecture} choose experts by token IDs"
    elif embedding.each_layer is not None or model.looks_up_grams:
        problem = f"each layer of {model.architecture} looks up token IDs"
    elif model.embedding_size != model.hidden_size:
        problem = f"embeddings of {model.architecture} are projected from {model.embedding_size} to {model.hidden_size}"
    if problem is not None:
        raise ConfigError(f"enable_prompt_embeds: {problem}")


def _choose_dtype(asked: str, model: ModelConfig, platform: str) -> str:
    checkpoint = model.dtype
    if platform == "tpu" and asked == "float16":
        raise ConfigError("dtype='float16': not supported on TPUs; use bfloat16, or omit dtype")
    if asked != "auto":
        return asked
    if platform == "tpu" and checkpoint == "float16":
        logger.warning("dtype auto: using bfloat16 instead of the checkpoint's float16, which TPUs do not support")
        return "bfloat16"
    # What recurrent layers compute is XLA's on CPUs, which in bfloat16 takes several times as long as in float32.
    if platform == "cpu" and (checkpoint == "float16" or (checkpoint == "bfloat16" and model.recurrences)):
        what = "recurrent layers" if model.recurrences else "CPUs"
        logger.info("dtype auto: using float32, because %s are slow in the checkpoint's %s", what, checkpoint)
        return "float32"
    return checkpoint


def _choose_length(options: ModelOptions, model: ModelConfig) -> int:
    asked, longest = options.max_model_len, model.context_length
    windows = [window for window in model.windows if window]
    if options.disable_sliding_window and windows:
        longest = min(longest, *windows)
    # Dynamic rope scaling follows the length one asks for.
    is_dynamic = model.rope is not None and model.rope.kind == "dynamic"
    if asked is not None and asked > longest and not is_dynamic:
        raise ConfigError(
            f"max_model_len={asked}: the model has positions for {longest} tokens only"
            + (" (disable_sliding_window)" if longest < model.context_length else "")
        )
    return asked or longest
