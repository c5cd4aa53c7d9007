"""BLOOM: ALiBi in place of positions, a norm after the embedding, biases everywhere."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """BLOOM's configuration; `seq_length` is the length it was trained on."""
    names = {**gpt.KEYS, "hidden_size": "n_embed", "max_position_embeddings": "seq_length"}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    file = gpt.reading(file, names, tie_word_embeddings=True, max_position_embeddings=2048, **ends)
    gpt.refuse(file, apply_residual_connection_post_layernorm=False)
    file.ignore("*_fusion", "attention_softmax_in_fp32", "offset_alibi", "skip_bias_add*", "slow_but_exact")
    sizes, norm = read_sizes(file), gpt.read_layer_norm(file)
    layer = LayerPlan(
        attention=AttentionPlan(rope=None, alibi=8.0, qkv_bias=True, output_bias=True),
        mlp=MLPPlan(activation="gelu_pytorch_tanh", is_gated=False, bias=True),
        attention_norm=norm,
        mlp_norm=norm,
    )
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=(layer,) * file.integer("num_hidden_layers"),
        norm=norm,
        embedding=EmbeddingPlan(norm=norm),
    )


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; query, key and value of one head lie together."""
    layer = "transformer.h.*"
    return {
        "embedding": "transformer.word_embeddings",
        "embedding.norm": "transformer.word_embeddings_layernorm",
        "norm": "transformer.ln_f",
        "head": "lm_head",
        "layers.*.attention_norm": f"{layer}.input_layernorm",
        "layers.*.mlp_norm": f"{layer}.post_attention_layernorm",
        **gpt.fused_attention(f"{layer}.self_attention.query_key_value", config, config.num_heads),
        "layers.*.attention.output": f"{layer}.self_attention.dense",
        "layers.*.mlp.up": f"{layer}.mlp.dense_h_to_4h",
        "layers.*.mlp.down": f"{layer}.mlp.dense_4h_to_h",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed=gpt.with_prefix("transformer.", "word_embeddings", "word_embeddings_layernorm", "h", "ln_f"),
    prefix="transformer.",
)
