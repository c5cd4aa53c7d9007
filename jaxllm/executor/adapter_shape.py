"""Slots for adapters, as an engine's options have them."""

from pathlib import Path

from jaxllm.config import EngineConfig, LoRAOptions
from jaxllm.errors import ConfigError, quoted
from jaxllm.models.options import AdapterShape
from jaxllm.pallas_kernels.low_rank import whole_blocks

MEDIA = ("image", "video", "audio")
"""What requests have besides text."""

EXPERTS = "experts"
"""What `lora_target_modules` calls the routed experts."""


def adapter_shape(config: EngineConfig, dtype: str) -> AdapterShape | None:
    """The slots of an engine whose activations have type `dtype`; None for none. Raises `ConfigError`."""
    options = config.lora
    _check_default_adapters(options)
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


def _check_default_adapters(options: LoRAOptions) -> None:
    """Raise `ConfigError` for adapters of media that no request could have."""
    given = options.default_mm_loras or {}
    if given and not options.enable_lora:
        raise ConfigError("default_mm_loras needs enable_lora; or give the one adapter as merge_lora, for all requests")
    for medium, folder in given.items():
        if medium not in MEDIA or not isinstance(folder, str) or not folder:
            raise ConfigError(
                f"default_mm_loras has {quoted(medium)}: {quoted(folder)}: expected {' or '.join(MEDIA)}, and a folder"
            )
        if folder.startswith(("/", ".")) and not Path(folder).is_dir():
            raise ConfigError(f"default_mm_loras: {medium}: there is no folder {folder}")
