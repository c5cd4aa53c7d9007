"""ChatGLM 2 and 3, and GLM-4 under the same name: half of each head rotated by neighbours, two KV heads."""

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan

KEYS = {
    "head_dim": "kv_channels",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "seq_length",
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "multi_query_group_num",
    "vocab_size": "padded_vocab_size",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ChatGLM's configuration. `rope_ratio` multiplies the base of the rotary embedding."""
    gpt.refuse(file, position_encoding_2d=False)  # that of ChatGLM 1, which has the same name
    file.ignore("*_fusion", "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "num_hidden_layers")
    file.ignore("fp32_residual_connection", "vocab_size")
    file = file.reading(KEYS, max_position_embeddings=2048)
    gpt.refuse(file, multi_query_attention=True, rmsnorm=True, post_layer_norm=True, original_rope=True)
    gpt.refuse(file, apply_residual_connection_post_layernorm=False, interleaved_qkv=False)
    sizes, bias = read_sizes(file), file.boolean("add_bias_linear", False)
    norm = NormPlan(eps=file.number("layernorm_epsilon", 1e-5))
    rope = RopeConfig(
        theta=10000.0 * file.number("rope_ratio", 1.0),
        trained_length=sizes["max_position_embeddings"],
        rotary_size=sizes["head_size"] // 2,
        interleaved=True,
    )
    qkv_bias = bias or file.boolean("add_qkv_bias", False)
    layer = LayerPlan(
        attention=AttentionPlan(rope=rope, qkv_bias=qkv_bias, output_bias=bias),
        mlp=MLPPlan(bias=bias),
        attention_norm=norm,
        mlp_norm=norm,
    )
    layers = (layer,) * file.integer("num_hidden_layers")
    return ModelConfig(architecture=architecture, **sizes, layers=layers, norm=norm)


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    layer, wide = "transformer.encoder.layers.*", config.intermediate_size
    return {
        "embedding": "transformer.embedding.word_embeddings",
        "norm": "transformer.encoder.final_layernorm",
        "head": "transformer.output_layer",
        "layers.*.attention_norm": f"{layer}.input_layernorm",
        "layers.*.mlp_norm": f"{layer}.post_attention_layernorm",
        **gpt.fused_attention(f"{layer}.self_attention.query_key_value", config),
        "layers.*.attention.output": f"{layer}.self_attention.dense",
        **fused(f"{layer}.mlp.dense_h_to_4h", {"layers.*.mlp.gate": wide, "layers.*.mlp.up": wide}),
        "layers.*.mlp.down": f"{layer}.mlp.dense_4h_to_h",
    }


FAMILY = Family(read_config, weight_names=weight_names, ignored_tensors=(".rotary_pos_emb.inv_freq",), like="Glm")
