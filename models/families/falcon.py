"""Falcon: 7B (one KV head, parallel blocks, one norm), 40B (several KV heads, two norms), RW (one after the other)."""

from dataclasses import replace

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

KEYS = {
    "hidden_size": "n_embed",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "num_kv_heads": "n_head_kv",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Falcon's configuration."""
    ends = {"bos_token_id": 11, "eos_token_id": 11}
    file = gpt.reading(file, KEYS, tie_word_embeddings=True, max_position_embeddings=2048, **ends)
    gpt.refuse(file, apply_residual_connection_post_layernorm=False)
    sizes, norm, bias = read_sizes(file), gpt.read_layer_norm(file), file.boolean("bias", False)
    is_new, multi_query = file.boolean("new_decoder_architecture", False), file.boolean("multi_query", True)
    kv_heads = file.optional_integer("num_kv_heads")
    sizes["num_kv_heads"] = (kv_heads or sizes["num_heads"]) if is_new else 1 if multi_query else sizes["num_heads"]
    if sizes["num_heads"] % sizes["num_kv_heads"]:
        raise file.wrong("num_kv_heads", f"a divisor of {sizes['num_heads']}")
    attention = AttentionPlan(rope=None, qkv_bias=bias, output_bias=bias)
    if file.boolean("alibi", False):
        file.ignore("rope_*")
        # The sum of products and biases is scaled.
        attention = attention.but(alibi=8.0, alibi_scale=sizes["head_size"] ** -0.5)
    else:
        attention = attention.but(rope=read_rope(file))
    layer = LayerPlan(
        attention=attention,
        mlp=MLPPlan(activation=read_activation(file, "activation", "gelu"), is_gated=False, bias=bias),
    )
    layers = (_with_norms(file, layer, norm, is_new=is_new),) * file.integer("num_hidden_layers")
    return ModelConfig(architecture=architecture, **sizes, layers=layers, norm=norm)


def _with_norms(file: ConfigFile, layer: LayerPlan, norm: NormPlan, *, is_new: bool) -> LayerPlan:
    """In parallel there is one norm or, of the new architecture only, two."""
    is_parallel = file.boolean("parallel_attn", True)
    norms = file.optional_integer("num_ln_in_parallel_attn") or (2 if is_new else 1)
    if is_new and not is_parallel:
        raise file.wrong("parallel_attn", "true with 'new_decoder_architecture'")
    if is_parallel and norms != 1 and not (is_new and norms == 2):
        raise file.wrong("num_ln_in_parallel_attn", "1, or 2 with 'new_decoder_architecture'")
    has_two = not is_parallel or norms == 2
    return replace(layer, attention_norm=norm, mlp_norm=norm if has_two else None, is_parallel=is_parallel)


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; those of a KV head and its query heads lie together."""
    layer, plan = "transformer.h.*", config.layers[0]
    has_two = plan.is_parallel and plan.mlp_norm is not None
    return {
        "embedding": "transformer.word_embeddings",
        "norm": "transformer.ln_f",
        "head": "lm_head",
        "layers.*.attention_norm": f"{layer}.ln_attn" if has_two else f"{layer}.input_layernorm",
        "layers.*.mlp_norm": f"{layer}.ln_mlp" if has_two else f"{layer}.post_attention_layernorm",
        **gpt.fused_attention(f"{layer}.self_attention.query_key_value", config, config.num_kv_heads),
        "layers.*.attention.output": f"{layer}.self_attention.dense",
        "layers.*.mlp.up": f"{layer}.mlp.dense_h_to_4h",
        "layers.*.mlp.down": f"{layer}.mlp.dense_4h_to_h",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=gpt.BUFFERS,
    prefix="transformer.",
)
