"""Slots for adapters, as an engine's options have them."""

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.models.options import AdapterShape
from jaxllm.pallas_kernels.low_rank import whole_blocks

EXPERTS = "experts"
"""What `lora_target_modules` calls the routed experts."""


def adapter_shape(config: EngineConfig, dtype: str) -> AdapterShape | None:
    """The slots of an engine whose activations have type `dtype`; None for none. Raises `ConfigError`."""
    options = config.lora
    if options.merge_lora is not None and options.enable_lora:
        raise ConfigError("merge_lora changes the weights that other adapters were trained for; omit enable_lora")
    if not options.enable_lora:
        return None
    if options.max_cpu_loras is not None and options.max_cpu_loras < options.max_loras:
        raise ConfigError(
            f"max_cpu_loras={options.max_cpu_loras} must be at least max_loras={options.max_loras}: adapters in slots "
            "stay in host memory, too"
        )
    rank, kind = options.max_lora_rank, dtype if options.lora_dtype == "auto" else options.lora_dtype
    experts = options.max_lora_expert_rank
    if experts is None:
        experts = rank if EXPERTS in options.lora_target_modules else 0
    if experts > rank:
        raise ConfigError(f"max_lora_expert_rank={experts} must be at most max_lora_rank={rank}")
    return AdapterShape(
        whole_blocks(options.max_loras, rank),
        rank,
        kind,
        options.lora_vectors,
        expert_rank=experts,
        num_expert_slots=options.max_loras if experts else 0,
        most_labels=options.max_lora_cls_labels or 0,
    )
