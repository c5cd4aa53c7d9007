"""OPT: learned positions from the third row on, layer norms before the blocks or, of 350M, after them."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan

UNUSED_ROWS = 2
"""Unused rows of the position table, which was made for texts with padding."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """OPT's configuration; embeddings may be narrower than what layers take."""
    ends = {"bos_token_id": 2, "eos_token_id": 2}
    names = {"intermediate_size": "ffn_dim"}
    file = file.reading(names, tie_word_embeddings=True, max_position_embeddings=2048, **ends)
    file.ignore("layerdrop", "prefix")
    sizes, bias = read_sizes(file), file.boolean("enable_bias", True)
    has_weights = file.boolean("layer_norm_elementwise_affine", True)
    norm = NormPlan(kind="layer", eps=1e-5, weight=has_weights, bias=has_weights)
    is_before = file.boolean("do_layer_norm_before", True)
    has_last = is_before and not file.boolean("_remove_final_layer_norm", False)
    before, behind = (norm, None) if is_before else (None, norm)
    layer = LayerPlan(
        attention=AttentionPlan(rope=None, qkv_bias=bias, output_bias=bias),
        mlp=MLPPlan(activation=read_activation(file, "activation_function", "relu"), is_gated=False, bias=bias),
        attention_norm=before,
        mlp_norm=before,
        attention_output_norm=behind,
        mlp_output_norm=behind,
        normalises_sum=not is_before,
    )
    width = file.optional_integer("word_embed_proj_dim") or sizes["hidden_size"]
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=(layer,) * file.integer("num_hidden_layers"),
        norm=norm if has_last else None,
        embedding=EmbeddingPlan(
            positions=sizes["max_position_embeddings"],
            position_offset=UNUSED_ROWS,
            size=width if width != sizes["hidden_size"] else None,
        ),
    )


LAYER = "model.decoder.layers.*"

FAMILY = Family(
    read_config,
    weight_names={
        "embedding": "model.decoder.embed_tokens",
        "embedding.projection": "model.decoder.project_in",
        "embedding.positions": "model.decoder.embed_positions",
        "norm": "model.decoder.final_layer_norm",
        "projection": "model.decoder.project_out",
        "head": "lm_head",
        "layers.*.attention_norm": f"{LAYER}.self_attn_layer_norm",
        "layers.*.attention_output_norm": f"{LAYER}.self_attn_layer_norm",
        "layers.*.attention.query": f"{LAYER}.self_attn.q_proj",
        "layers.*.attention.key": f"{LAYER}.self_attn.k_proj",
        "layers.*.attention.value": f"{LAYER}.self_attn.v_proj",
        "layers.*.attention.output": f"{LAYER}.self_attn.out_proj",
        "layers.*.mlp_norm": f"{LAYER}.final_layer_norm",
        "layers.*.mlp_output_norm": f"{LAYER}.final_layer_norm",
        "layers.*.mlp.up": f"{LAYER}.fc1",
        "layers.*.mlp.down": f"{LAYER}.fc2",
    },
    renamed={"decoder.": "model.decoder."},
)
