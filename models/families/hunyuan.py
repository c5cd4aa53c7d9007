"""HunYuan, dense: heads are normalised after the rotary embedding, whose base is stretched by alpha."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """HunYuan's configuration.

    Published files have options of the authors' larger family, too: experts, layers that share keys, images.
    """
    names = {} if file.has("head_dim") else {"head_dim": "attention_head_dim"}
    file = file.reading(names, max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    file.ignore(*_OF_THE_AUTHORS)
    if file.has("head_dim"):
        file.expect(attention_head_dim=file.integer("head_dim"))
    file.expect(use_qk_norm=True, use_rotary_pos_emb=True, norm_type="rms", num_experts=1)
    bias, options = file.boolean("attention_bias", False), read_llama(file)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = tuple(layer.attending(norm=options["norm"], norm_is_last=True) for layer in layers)
    return ModelConfig(architecture=architecture, **options)


_OF_THE_AUTHORS = (
    *("cla_share_factor", "enable_lm_head_fp32", "org_vocab_size", "pad_id", "sep_token_id"),
    *("moe_*", "num_shared_expert", "routed_scaling_factor", "*_id", "*_init_id", "vit_*", "anyres_*", "dense_list"),
    *("class_num", "pool_type", "add_classification_head"),
)
"""Without `use_cla`, experts and images they change nothing; logits are computed in float32 anyway."""


FAMILY = Family(
    read_config,
    weight_names={
        **LLAMA_NAMES,
        "layers.*.attention.query_norm": "model.layers.*.self_attn.query_layernorm",
        "layers.*.attention.key_norm": "model.layers.*.self_attn.key_layernorm",
    },
)
