"""Qwen 3 with experts, in every layer unless the configuration says otherwise."""

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, sparse_layers, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, expert_names
from jaxllm.models.mlp_plan import RouterPlan


def read_config(file: ConfigFile, architecture: str, rope: RopeConfig | None = None) -> ModelConfig:
    """Qwen3-MoE's configuration; one window for all layers, if it is switched on. Its rotary embedding may be given."""
    file = file.reading({"num_experts": "num_local_experts"}, max_position_embeddings=32768, num_key_value_heads=4)
    bias = file.boolean("attention_bias", False)
    options = read_llama(file, rope=rope)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(norm=layer.attention_norm) for layer in layers),
        only=sparse_layers(file, len(layers)),
        count=file.integer("num_experts", 128),
        per_token=file.integer("num_experts_per_tok", 8),
        size=file.integer("moe_intermediate_size", 768),
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", False)),
    )
    config = ModelConfig(architecture=architecture, **options)
    window = file.optional_integer("sliding_window", 4096) if file.boolean("use_sliding_window", False) else None
    return config.with_windows((window or 0,) * config.num_layers)


FAMILY = Family(read_config, weight_names={**LLAMA_NAMES, **expert_names("mlp")})
