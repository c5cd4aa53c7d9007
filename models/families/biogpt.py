"""BioGPT: OPT's layers, where embeddings are multiplied by the square root of the hidden size."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family
from jaxllm.models.families.opt import UNUSED_ROWS
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """BioGPT's configuration, whose `layer_norm_eps` no norm has."""
    ends = {"bos_token_id": 0, "eos_token_id": 2}
    file = file.reading(tie_word_embeddings=True, max_position_embeddings=1024, **ends)
    file.ignore("layer_norm_eps", "layerdrop")
    norm, sizes = NormPlan(kind="layer", eps=1e-5, bias=True), read_sizes(file)
    layer = LayerPlan(
        attention=AttentionPlan(rope=None, qkv_bias=True, output_bias=True),
        mlp=MLPPlan(activation=read_activation(file, "hidden_act", "gelu"), is_gated=False, bias=True),
        attention_norm=norm,
        mlp_norm=norm,
    )
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=(layer,) * file.integer("num_hidden_layers"),
        norm=norm,
        embedding=EmbeddingPlan(
            scale=sizes["hidden_size"] ** 0.5 if file.boolean("scale_embedding", True) else 1.0,
            scaled=True,
            positions=sizes["max_position_embeddings"],
            position_offset=UNUSED_ROWS,
        ),
    )


LAYER = "biogpt.layers.*"

FAMILY = Family(
    read_config,
    weight_names={
        "embedding": "biogpt.embed_tokens",
        "embedding.positions": "biogpt.embed_positions",
        "norm": "biogpt.layer_norm",
        "head": "output_projection",
        "layers.*.attention_norm": f"{LAYER}.self_attn_layer_norm",
        "layers.*.attention.query": f"{LAYER}.self_attn.q_proj",
        "layers.*.attention.key": f"{LAYER}.self_attn.k_proj",
        "layers.*.attention.value": f"{LAYER}.self_attn.v_proj",
        "layers.*.attention.output": f"{LAYER}.self_attn.out_proj",
        "layers.*.mlp_norm": f"{LAYER}.final_layer_norm",
        "layers.*.mlp.up": f"{LAYER}.fc1",
        "layers.*.mlp.down": f"{LAYER}.fc2",
    },
    other_heads=("output_projection.",),
    prefix="biogpt.",
)
