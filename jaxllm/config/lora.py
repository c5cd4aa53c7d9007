"""Options of LoRA adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config.option import Section, option


@dataclass(frozen=True, kw_only=True)
class LoRAOptions(Section):
    """LoRA adapters."""

    enable_lora: bool = option(
        False, "Serve LoRA adapters next to the model: a request names its adapter, and each may name another."
    )
    max_loras: int = option(
        1,
        "Slots for adapters on the devices: so many different ones can be in one batch. Each takes memory for an "
        "adapter of max_lora_rank.",
        minimum=1,
        maximum=1024,
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = option(16, "Largest rank of an adapter.")
    max_lora_expert_rank: Literal[0, 1, 8, 16, 32, 64, 128, 256, 320, 512] | None = option(
        None,
        "Largest rank of an adapter of routed experts, at most max_lora_rank; 0: they have none. Every slot has "
        "matrices for every expert, which takes much memory. Default: max_lora_rank if lora_target_modules names "
        "experts, else 0.",
    )
    max_cpu_loras: int | None = option(
        None,
        "Adapters kept in the host's memory, to be in a slot again without being read; at least max_loras. "
        "Default: max_loras.",
        minimum=1,
    )
    lora_vectors: bool = option(
        False,
        "Serve adapters with magnitudes (DoRA) and trained biases, too: each linear layer then multiplies and adds "
        "once more.",
    )
    lora_dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "Type of adapters on the devices; auto: that of the activations."
    )
    lora_target_modules: tuple[str, ...] = option(
        (),
        "Modules of the model that adapters may change, such as q_proj o_proj: the others get no slots, which saves "
        "memory, and adapters that change others are rejected; experts are the routed ones. Default: all linear "
        "layers.",
    )
    max_lora_cls_labels: int | None = option(
        None,
        "Most labels of a classifier that an adapter brings along (modules_to_save). Default: as many as the model's.",
        minimum=1,
        maximum=1_000_000,
    )
    default_mm_loras: Mapping[str, Any] | None = option(
        None,
        'Folders of the adapters for requests that name none, by what these have besides text, as JSON: {"image": '
        '"/models/phi-4-multimodal/vision-lora"}; image, video or audio. With enable_lora.',
        shown=True,
    )
    merge_lora: str | None = option(
        None,
        "Folder of an adapter that is added to the weights when they are read, in float32: the model is served with "
        "it, at the speed of the model alone. Without enable_lora.",
    )
