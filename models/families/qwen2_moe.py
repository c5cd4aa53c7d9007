"""Qwen 1.5 and 2 with experts: one more MLP for all tokens, after a gate of its own."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    layer_types,
    read_llama,
    sparse_layers,
    with_biases,
    with_experts,
)
from jaxllm.models.families.family import LLAMA_NAMES, Family, expert_names
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen2-MoE's configuration; windows are on every second of the lower layers, if they are switched on."""
    file = file.reading(max_position_embeddings=32768, num_key_value_heads=16)
    options = read_llama(file)
    layers = with_biases(options["layers"], qkv=file.boolean("qkv_bias", True), output=False)
    options["layers"] = with_experts(
        file,
        layers,
        only=sparse_layers(file, len(layers)),
        count=file.integer("num_experts", 60),
        per_token=file.integer("num_experts_per_tok", 4),
        size=file.integer("moe_intermediate_size", 1408),
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", False)),
        shared=MLPPlan(activation=layers[0].mlp.activation, size=file.integer("shared_expert_intermediate_size", 5632)),
        shared_gate=True,
    )
    config = ModelConfig(architecture=architecture, **options)
    lower = file.optional_integer("max_window_layers", 28, minimum=0) or 0
    window = file.optional_integer("sliding_window", 4096, minimum=0)
    if not file.boolean("use_sliding_window", False):
        window = None
    default = [SLIDING if layer % 2 == 0 and layer < lower else FULL for layer in range(config.num_layers)]
    kinds = layer_types(file, config.num_layers, default)
    return config.with_windows([(window or 0) if kind == SLIDING else 0 for kind in kinds])


SHARED_NAMES = {
    "layers.*.mlp.shared.gate": "model.layers.*.mlp.shared_expert.gate_proj",
    "layers.*.mlp.shared.up": "model.layers.*.mlp.shared_expert.up_proj",
    "layers.*.mlp.shared.down": "model.layers.*.mlp.shared_expert.down_proj",
    "layers.*.mlp.shared_gate": "model.layers.*.mlp.shared_expert_gate",
}

FAMILY = Family(read_config, weight_names={**LLAMA_NAMES, **expert_names("mlp"), **SHARED_NAMES})
