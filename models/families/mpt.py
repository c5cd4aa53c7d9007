"""MPT: ALiBi in place of positions, layer norms and products without biases."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import LayerPlan

KEYS = {
    "hidden_size": "d_model",
    "max_position_embeddings": "max_seq_len",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """MPT's configuration, as transformers computes it."""
    wide = file.integer("expansion_ratio", 4) * file.integer("d_model", 2048)
    file = file.reading(KEYS, tie_word_embeddings=True, max_position_embeddings=2048, intermediate_size=wide)
    gpt.refuse(file, no_bias=True)
    if file.has("logit_scale"):
        raise ModelError(f"{file.source}: option 'logit_scale' is not supported")
    if not file.text("norm_type", "low_precision_layernorm").endswith("layernorm"):
        raise file.wrong("norm_type", "a layer norm")
    file.ignore("embedding_fraction", "init_device", "init_config", "learned_pos_emb", "tokenizer_name", "verbose")
    sizes, norm = read_sizes(file), gpt.read_layer_norm(file, bias=False)
    layer = LayerPlan(
        attention=_attention(file.section("attn_config") or ConfigFile({}, file.source)),
        mlp=MLPPlan(activation="gelu", is_gated=False),
        attention_norm=norm,
        mlp_norm=norm,
    )
    layers = (layer,) * file.integer("num_hidden_layers")
    return ModelConfig(architecture=architecture, **sizes, layers=layers, norm=norm)


def _attention(file: ConfigFile) -> AttentionPlan:
    gpt.refuse(file, alibi=True, attn_uses_sequence_id=False, prefix_lm=False, qk_ln=False)
    if file.text("attn_type", "multihead_attention") != "multihead_attention":
        raise file.wrong("attn_type", "multihead_attention")
    file.ignore("attn_impl", "attn_pdrop")
    return AttentionPlan(
        rope=None,
        alibi=file.number("alibi_bias_max", 8.0),
        clip=file.optional_number("clip_qkv") or None,
        scale=file.optional_number("softmax_scale"),
    )


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    layer = "transformer.blocks.*"
    return {
        "embedding": "transformer.wte",
        "norm": "transformer.norm_f",
        "head": "lm_head",
        "layers.*.attention_norm": f"{layer}.norm_1",
        "layers.*.mlp_norm": f"{layer}.norm_2",
        **gpt.fused_attention(f"{layer}.attn.Wqkv", config),
        "layers.*.attention.output": f"{layer}.attn.out_proj",
        "layers.*.mlp.up": f"{layer}.ffn.up_proj",
        "layers.*.mlp.down": f"{layer}.ffn.down_proj",
    }


FAMILY = Family(read_config, weight_names=weight_names, prefix="transformer.")
