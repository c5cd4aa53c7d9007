"""GPT-2: learned positions, layer norms, biases everywhere, matrices stored as (in, out)."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan

ENDS = {"bos_token_id": 50256, "eos_token_id": 50256}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """GPT-2's configuration."""
    mlp = MLPPlan(activation=read_activation(file, "activation_function", "gelu_new"), is_gated=False, bias=True)
    return read_with_mlp(file, architecture, mlp)


def read_with_mlp(file: ConfigFile, architecture: str, mlp: MLPPlan) -> ModelConfig:
    """The rest of it; attention may be scaled by the layer's number, and need not be by the head's size."""
    file = gpt.reading(file, gpt.KEYS, tie_word_embeddings=True, max_position_embeddings=1024, **ENDS)
    gpt.refuse(file, add_cross_attention=False)
    file.ignore("reorder_and_upcast_attn", *gpt.UNUSED)
    sizes, norm = read_sizes(file), gpt.read_layer_norm(file)
    scale = sizes["head_size"] ** -0.5 if file.boolean("scale_attn_weights", True) else 1.0
    by_layer = file.boolean("scale_attn_by_inverse_layer_idx", False)
    layer = LayerPlan(
        attention=AttentionPlan(rope=None, scale=scale, qkv_bias=True, output_bias=True),
        mlp=mlp,
        attention_norm=norm,
        mlp_norm=norm,
    )
    count = file.integer("num_hidden_layers")
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=tuple(layer.attending(scale=scale / (index + 1 if by_layer else 1)) for index in range(count)),
        norm=norm,
        embedding=EmbeddingPlan(positions=sizes["max_position_embeddings"]),
    )


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    layer = "transformer.h.*"
    matrices: dict[str, str | Source] = {
        **gpt.fused_attention(f"{layer}.attn.c_attn", config),
        "layers.*.attention.output": f"{layer}.attn.c_proj",
        "layers.*.mlp.up": f"{layer}.mlp.c_fc",
        "layers.*.mlp.down": f"{layer}.mlp.c_proj",
    }
    return {**NAMES, **gpt.transposed(matrices)}


NAMES = {
    "embedding": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.*.attention_norm": "transformer.h.*.ln_1",
    "layers.*.mlp_norm": "transformer.h.*.ln_2",
}

FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=gpt.BUFFERS,
    renamed=gpt.with_prefix("transformer.", "wte", "wpe", "h", "ln_f"),
    prefix="transformer.",
)
