"""GPT-NeoX and Pythia: parallel blocks with a norm each, or one after the other; a part of each head is rotated."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """NeoX's configuration."""
    names = {
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
        "layer_norm_epsilon": "layer_norm_eps",
    }
    ends = {"bos_token_id": 0, "eos_token_id": 2}
    file = file.reading(names, max_position_embeddings=2048, partial_rotary_factor=0.25, **ends)
    sizes, norm = read_sizes(file), gpt.read_layer_norm(file)
    bias = file.boolean("attention_bias", True)
    layer = LayerPlan(
        attention=AttentionPlan(rope=read_rope(file), qkv_bias=bias, output_bias=bias),
        mlp=MLPPlan(activation=read_activation(file, "hidden_act", "gelu"), is_gated=False, bias=True),
        attention_norm=norm,
        mlp_norm=norm,
        is_parallel=file.boolean("use_parallel_residual", True),
    )
    layers = (layer,) * file.integer("num_hidden_layers")
    return ModelConfig(architecture=architecture, **sizes, layers=layers, norm=norm)


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; query, key and value of one head lie together."""
    layer = "gpt_neox.layers.*"
    return {
        "embedding": "gpt_neox.embed_in",
        "norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        "layers.*.attention_norm": f"{layer}.input_layernorm",
        "layers.*.mlp_norm": f"{layer}.post_attention_layernorm",
        **gpt.fused_attention(f"{layer}.attention.query_key_value", config, config.num_heads),
        "layers.*.attention.output": f"{layer}.attention.dense",
        "layers.*.mlp.up": f"{layer}.mlp.dense_h_to_4h",
        "layers.*.mlp.down": f"{layer}.mlp.dense_4h_to_h",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=gpt.BUFFERS,
    other_heads=("embed_out.", "lm_head."),
    prefix="gpt_neox.",
)
