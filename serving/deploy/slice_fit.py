"""How a model lies on a slice: what `jaxllm plan` says of TPUs, and estimates of GPUs. Imports JAX."""

from collections.abc import Sequence
from dataclasses import replace

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.devices import tensor_parallel_size
from jaxllm.executor.largest_step import PROVISIONAL_PAGES
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.pipeline.stages import refuse_stages
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.sharding import splits, working_sizes
from jaxllm.planning.fit import fit
from jaxllm.planning.target import find_target
from jaxllm.serving.deploy.hardware import Choice, Slice

_GPU_RESERVE = 0.1
"""Share of a GPU's memory for what a step needs; without the GPU no compiler says it."""


def fit_slice(config: EngineConfig, hardware: Slice) -> Choice:
    """How a slice holds the model. Raises `ConfigError`, and `CapacityError` where it does not."""
    refuse_stages(config, "jaxllm manifest")
    if hardware.platform == "gpu":
        return _fit_gpus(config, hardware)
    if hardware.platform == "cpu":
        return _fit_cpu(config, hardware)
    return _fit_tpus(config, hardware)


def _fit_tpus(config: EngineConfig, hardware: Slice) -> Choice:
    asked = tensor_parallel_size(config.parallel)
    # An engine of several hosts uses all their chips, and engines of one host have whole chips.
    sizes: Sequence[int | None] = [asked] if hardware.hosts == 1 else [hardware.devices]
    if asked is not None and (asked > hardware.devices or (hardware.hosts > 1 and asked != hardware.devices)):
        raise CapacityError(f"tensor_parallel_size={asked} is not what its {hardware.devices} devices make")
    sized = _with_size(config, sizes[0])
    target = find_target(hardware.device, hardware.topology, 1)
    try:
        resolved = resolve_config(sized, target.devices)
    except ConfigError as error:
        if "cannot divide the model" not in str(error) or asked is not None:
            raise
        raise CapacityError(str(error)) from error
    fitted = fit(resolved, target)
    if asked is None and hardware.devices_per_chip > 1 and splits(resolved.model, hardware.devices):
        # Engines of one host are given chips, not parts of one: a single engine has all.
        fitted = fit(resolve_config(_with_size(config, hardware.devices), target.devices), target)
    return _choice(fitted, resolved, hardware)


def _choice(fitted: ResolvedConfig, resolved: ResolvedConfig, hardware: Slice) -> Choice:
    size = fitted.num_devices
    return Choice(
        hardware,
        tensor_parallel_size=size,
        data_parallel_size=hardware.devices // size if hardware.devices_per_chip == 1 else 1,
        max_model_len=fitted.max_model_len,
        shortened=fitted.max_model_len < resolved.max_model_len,
        weights=_weights(fitted) * size,
    )


def _fit_cpu(config: EngineConfig, hardware: Slice) -> Choice:
    resolved = resolve_config(_with_size(config, 1))
    return Choice(hardware, 1, 1, resolved.max_model_len, shortened=False, weights=_weights(resolved))


def _fit_gpus(config: EngineConfig, hardware: Slice) -> Choice:
    """By shapes alone: weights and one longest request, split over the GPUs."""
    asked = tensor_parallel_size(config.parallel)
    dtype = "bfloat16" if config.model.dtype == "auto" else config.model.dtype
    here = replace(_with_size(config, 1), model=replace(config.model, dtype=dtype))
    resolved = resolve_config(here)
    count = hardware.chips_per_host if asked is None else asked
    if count > hardware.chips_per_host or count not in working_sizes(resolved.model):
        raise CapacityError(f"it cannot be sharded over {count} of {hardware.name}")
    weights = _weights(resolved)
    utilization = config.cache.gpu_memory_utilization - _GPU_RESERVE
    free = int(count * hardware.memory_per_device * utilization) - weights
    page = _page(resolved)
    tokens = max(free, 0) // page * resolved.cache.page_size
    if tokens < resolved.cache.page_size:
        raise CapacityError(
            f"weights take {weights / 2**30:.1f} GiB, but {count} x {hardware.device} have "
            f"{count * hardware.memory_per_device * utilization / 2**30:.1f} GiB for them and the KV cache"
        )
    length = min(tokens, resolved.max_model_len)
    if config.model.max_model_len is not None and length < config.model.max_model_len:
        raise CapacityError(f"its KV cache holds {tokens:,} tokens, but max_model_len is {resolved.max_model_len:,}")
    return Choice(hardware, count, hardware.chips_per_host // count, length, length < resolved.max_model_len, weights)


def _with_size(config: EngineConfig, size: int | None) -> EngineConfig:
    parallel = replace(config.parallel, tensor_parallel_size="auto" if size is None else size, data_parallel_size=1)
    return replace(config, parallel=parallel)


def _weights(resolved: ResolvedConfig) -> int:
    """Bytes of weights on one device."""
    return bytes_on_device(generation_programs(resolved, PROVISIONAL_PAGES).parameters)


def _page(resolved: ResolvedConfig) -> int:
    """Bytes of one page of the KV cache."""
    return bytes_on_device(generation_programs(resolved, PROVISIONAL_PAGES).state.kv_cache.pages) // PROVISIONAL_PAGES
