"""Persimmon: layer norms, also on heads; half of each head is rotated; squared ReLU without a gate."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Persimmon's configuration."""
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    file = file.reading(max_position_embeddings=16384, partial_rotary_factor=0.5, **ends)
    norm = NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-5), bias=True)
    layer = LayerPlan(
        attention=AttentionPlan(
            rope=read_rope(file),
            qkv_bias=True,
            output_bias=True,
            norm=norm if file.boolean("qk_layernorm", True) else None,
        ),
        mlp=MLPPlan(activation=read_activation(file, "hidden_act", "relu2"), is_gated=False, bias=True),
        attention_norm=norm,
        mlp_norm=norm,
    )
    layers = (layer,) * file.integer("num_hidden_layers")
    return ModelConfig(architecture=architecture, **read_sizes(file), layers=layers, norm=norm)


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; query, key and value of one head lie together."""
    layer = "model.layers.*"
    return {
        "embedding": "model.embed_tokens",
        "norm": "model.final_layernorm",
        "head": "lm_head",
        "layers.*.attention_norm": f"{layer}.input_layernorm",
        "layers.*.mlp_norm": f"{layer}.post_attention_layernorm",
        **gpt.fused_attention(f"{layer}.self_attn.query_key_value", config, config.num_heads),
        "layers.*.attention.query_norm": f"{layer}.self_attn.q_layernorm",
        "layers.*.attention.key_norm": f"{layer}.self_attn.k_layernorm",
        "layers.*.attention.output": f"{layer}.self_attn.dense",
        "layers.*.mlp.up": f"{layer}.mlp.dense_h_to_4h",
        "layers.*.mlp.down": f"{layer}.mlp.dense_4h_to_h",
    }


FAMILY = Family(read_config, weight_names=weight_names)
