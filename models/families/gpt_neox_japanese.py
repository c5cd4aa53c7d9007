"""GPT-NeoX Japanese: blocks one after the other, and a bias after attention in the last layer alone."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
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
    """Its configuration."""
    times = file.integer("intermediate_multiple_size", 4)
    file = file.but(intermediate_size=times * file.integer("hidden_size"))
    names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    ends = {"bos_token_id": 31996, "eos_token_id": 31999}
    file = file.reading(
        names, max_position_embeddings=2048, partial_rotary_factor=1.0, tie_word_embeddings=True, **ends
    )
    norm = NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-5), bias=True)
    layer = LayerPlan(
        attention=AttentionPlan(rope=read_rope(file)),
        mlp=MLPPlan(activation=read_activation(file, "hidden_act", "gelu"), is_gated=False),
        attention_norm=norm,
        mlp_norm=norm,
    )
    layers = (*(layer,) * (file.integer("num_hidden_layers") - 1), layer.attending(output_bias=True))
    return ModelConfig(architecture=architecture, **read_sizes(file), layers=layers, norm=norm)


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; query, key and value of one head lie together."""
    layer = "gpt_neox_japanese.layers.*"
    return {
        "embedding": "gpt_neox_japanese.embed_in",
        "norm": "gpt_neox_japanese.final_layer_norm",
        "head": "embed_out",
        "layers.*.attention_norm": f"{layer}.input_layernorm",
        "layers.*.mlp_norm": f"{layer}.post_attention_layernorm",
        **gpt.fused_attention(f"{layer}.attention.query_key_value", config, config.num_heads),
        "layers.*.attention.output": Source(
            f"{layer}.attention", endings={"weight": ".dense.weight", "bias": ".dense_bias"}
        ),
        "layers.*.mlp.up": f"{layer}.mlp.dense_h_to_4h",
        "layers.*.mlp.down": f"{layer}.mlp.dense_4h_to_h",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=gpt.BUFFERS,
    other_heads=("embed_out.",),
    prefix="gpt_neox_japanese.",
)
