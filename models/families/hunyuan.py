"""HunYuan, dense and with experts: heads are normalised after the rotary embedding, whose base alpha stretches."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The dense HunYuan's configuration."""
    file.expect(num_experts=1)
    return _read(file, architecture)


def read_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of HunYuan with experts, plus one expert for all tokens."""
    file = file.reading({"num_experts": "num_local_experts"})
    # Options with what is the only way here. Numbers may be given for each layer.
    file.expect(use_mixed_mlp_moe=True, norm_topk_prob=True, moe_layer_num_skipped=0)
    config = _read(file, architecture)
    count, size = _of_all_layers(file, "num_experts", 1), config.intermediate_size
    _expect_in_all_layers(file, num_shared_expert=1, moe_intermediate_size=size)
    layers = with_experts(
        file,
        config.layers,
        count=count,
        per_token=_of_all_layers(file, "moe_topk", 1),
        size=size,
        router=RouterPlan(normalised=True),
        shared=MLPPlan(activation=config.layers[0].mlp.activation, size=size),
    )
    return replace(config, layers=layers)


def _of_all_layers(file: ConfigFile, key: str, default: int) -> int:
    """A number, or the one that is given for every layer. Raises `ModelError` where layers differ."""
    if not isinstance(file.values.get(key), list):
        return file.integer(key, default)
    found = set(file.integers(key))
    if len(found) != 1 or min(found) < 1:
        raise file.wrong(key, "one positive number, or the same for all layers")
    return found.pop()


def _expect_in_all_layers(file: ConfigFile, **expected: int) -> None:
    for key, value in expected.items():
        if file.has(key) and _of_all_layers(file, key, value) != value:
            raise file.wrong(key, f"{value} in all layers")


def _read(file: ConfigFile, architecture: str) -> ModelConfig:
    """What both have.

    Published files have options of the authors' larger family, too: experts, layers that share keys, images.
    """
    names = {} if file.has("head_dim") else {"head_dim": "attention_head_dim"}
    file = file.reading(names, max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    file.ignore(*_OF_THE_AUTHORS)
    if file.has("head_dim"):
        file.expect(attention_head_dim=file.integer("head_dim"))
    file.expect(use_qk_norm=True, use_rotary_pos_emb=True, norm_type="rms")
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


NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention.query_norm": "model.layers.*.self_attn.query_layernorm",
    "layers.*.attention.key_norm": "model.layers.*.self_attn.key_layernorm",
}
MOE_NAMES: Names = {
    **NAMES,
    **expert_names("mlp"),
    "layers.*.mlp.router": "model.layers.*.mlp.gate.wg",
    "layers.*.mlp.shared.gate": "model.layers.*.mlp.shared_mlp.gate_proj",
    "layers.*.mlp.shared.up": "model.layers.*.mlp.shared_mlp.up_proj",
    "layers.*.mlp.shared.down": "model.layers.*.mlp.shared_mlp.down_proj",
}

FAMILY = Family(read_config, weight_names=NAMES)
MOE = Family(read_moe, weight_names=MOE_NAMES)
