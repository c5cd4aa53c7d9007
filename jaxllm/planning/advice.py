"""Advice on changing an engine that does not fit."""

from collections.abc import Iterator
from typing import Any

from jaxllm.config import EngineConfig, option_fields
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.largest_step import PROVISIONAL_PAGES
from jaxllm.executor.memory.capacity import bytes_on_device, count_pages
from jaxllm.executor.memory.memory import usable_bytes
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.sharding import working_sizes
from jaxllm.planning.memory import CompiledProgram, MemoryUse, memory_limit
from jaxllm.planning.target import TargetDevices, find_target

USUAL_TEMPORARIES = 0.02
"""Share of a device's memory that a step is taken to need where it could not be compiled."""

FEWEST_TOKENS = 256
"""Smaller token budgets are not advised: prompts would crawl."""


def advise(
    resolved: ResolvedConfig, target: TargetDevices, memory: MemoryUse, largest: CompiledProgram | None
) -> list[str]:
    """Single changes of options with which it would fit, the smallest first; empty when there is none.

    What is not compiled for them is estimated: a step's temporaries grow with its tokens, and are the same on more
    devices.
    """
    beside = usual_temporaries(memory)
    if largest is not None:
        beside = largest.bytes
    return [
        *_shorter(resolved, memory, beside),
        *_suggest_fewer_tokens(resolved, memory, beside),
        *_suggest_plans(resolved, target, memory, beside),
    ]


def usual_temporaries(memory: MemoryUse) -> int:
    """Bytes that a step is taken to need for itself."""
    return int(memory.limit * USUAL_TEMPORARIES)


def _shorter(resolved: ResolvedConfig, memory: MemoryUse, beside: int) -> Iterator[str]:
    free = memory.cache_budget(None) - beside
    tokens = resolved.cache_groups.longest(max(max(free, 0) // memory.page - 1, 0))
    if 2 <= tokens < resolved.max_model_len:
        yield f"--max-model-len {tokens} or less"


def _suggest_fewer_tokens(resolved: ResolvedConfig, memory: MemoryUse, beside: int) -> Iterator[str]:
    tokens = resolved.max_num_batched_tokens // 2
    while tokens >= FEWEST_TOKENS:
        needed = beside * tokens // resolved.max_num_batched_tokens
        if _holds(resolved, memory.cache_budget(None) - needed):
            yield f"--max-num-batched-tokens {tokens} or less"
            return
        tokens //= 2


def _suggest_plans(resolved: ResolvedConfig, target: TargetDevices, memory: MemoryUse, beside: int) -> Iterator[str]:
    """More devices, or a smaller type."""
    if resolved.dtype == "float32" and _fits(_changed(resolved.config, dtype="bfloat16"), target, beside):
        yield "--dtype bfloat16"
    # Weights that are too large alone are as large alongside a small cache.
    narrow = _with_narrow_cache(resolved) if memory.cache_budget(None) > beside else None
    if narrow is not None and _fits(narrow, target, beside):
        yield f"--kv-cache-dtype {narrow.cache.kv_cache_dtype}"
    yield from _suggest_quantization(resolved, target, beside)
    if not target.absent:
        yield from _suggest_same_devices(resolved, target, memory, beside)
    elif target.chip is not None:
        yield from _suggest_devices(resolved, target, beside)


def _suggest_quantization(resolved: ResolvedConfig, target: TargetDevices, beside: int) -> Iterator[str]:
    """Rounding an ordinary checkpoint while it is read, to no fewer bits than it takes."""
    if resolved.model.is_quantized:
        return
    for method in ("int8", "int4"):
        try:
            is_enough = _fits(_changed(resolved.config, quantization=method), target, beside)
        except (ConfigError, ModelError):
            continue  # The devices cannot share such matrices.
        if is_enough:
            yield f"--quantization {method}"
            return


def _suggest_devices(resolved: ResolvedConfig, target: TargetDevices, beside: int) -> Iterator[str]:
    """The fewest devices with which it would fit; sharing whole experts, where no number of them can share each."""
    assert target.chip is not None
    for expert_parallel in dict.fromkeys((resolved.forward.expert_parallel, bool(resolved.model.expert_counts))):
        given = " --enable-expert-parallel" if expert_parallel > resolved.forward.expert_parallel else ""
        for size in working_sizes(resolved.model, expert_parallel=expert_parallel):
            if size <= resolved.num_devices:
                continue
            count = size * resolved.config.parallel.pipeline_parallel_size
            try:
                larger = target if count <= len(target.devices) else find_target(target.chip.name, None, count)
            except ConfigError:
                # No usual machine has so many.
                break
            options = {"tensor_parallel_size": size, "mesh": None, "enable_expert_parallel": expert_parallel}
            if _fits(_changed(resolved.config, **options), larger, beside):
                topology = "" if larger is target else f" --topology {larger.topology}"
                yield f"--tensor-parallel-size {size}{given}{topology}"
                return


def _with_narrow_cache(resolved: ResolvedConfig) -> EngineConfig | None:
    """The configuration with a KV cache in 8 bits, where it is not and some attention takes it."""
    if resolved.cache.bytes_each == 1 or resolved.model.latent is not None or resolved.model.compressed:
        return None
    return _changed(resolved.config, kv_cache_dtype="fp8_e4m3")


def _suggest_same_devices(
    resolved: ResolvedConfig, target: TargetDevices, memory: MemoryUse, beside: int
) -> Iterator[str]:
    """More devices like those that are here, be they here or not; what they share is split evenly, roughly."""
    if resolved.platform == "cpu":
        return
    request = resolved.cache_groups.most_pages(resolved.max_model_len) + 1
    shared = (memory.weights + request * memory.page) * resolved.num_devices
    for size in working_sizes(resolved.model, expert_parallel=resolved.forward.expert_parallel):
        if size > resolved.num_devices and shared / size + memory.state + beside <= memory.usable:
            here, count = len(target.devices), size * resolved.config.parallel.pipeline_parallel_size
            yield (
                f"--tensor-parallel-size {size}" if count <= here else f"{count} such devices (this machine has {here})"
            )
            return


def _changed(config: EngineConfig, **options: Any) -> EngineConfig:
    before = {item.name: getattr(getattr(config, section), item.name) for section, item in option_fields()}
    return EngineConfig.from_options({**before, **options})


def _fits(config: EngineConfig, target: TargetDevices, beside: int) -> bool:
    resolved = resolve_config(config, target.devices if target.absent else None)
    return all(_part_fits(part, target, beside) for part in resolved.stage_configs)


def _part_fits(resolved: ResolvedConfig, target: TargetDevices, beside: int) -> bool:
    """Whether a stage fits, or the engine if it has only one."""
    programs = generation_programs(resolved, PROVISIONAL_PAGES)
    # Without the padding of layouts, which is little, and which only the compiler knows.
    needed = bytes_on_device((programs.parameters, programs.state)) - bytes_on_device(programs.state.kv_cache)
    limit = memory_limit(resolved, target)
    usable = usable_bytes(limit, resolved.platform, resolved.config.cache.gpu_memory_utilization)
    return _holds(resolved, usable - needed - beside)


def _holds(resolved: ResolvedConfig, free: int) -> bool:
    """Whether one request of the longest length fits into so much memory for the KV cache."""
    try:
        count_pages(resolved, max(free, 0))
    except CapacityError:
        return False
    return True
