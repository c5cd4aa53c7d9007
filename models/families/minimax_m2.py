"""MiniMax-M2: experts by the sigmoid of their scores, queries and keys normalised over all heads."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """MiniMax-M2's configuration. What predicts further tokens is not used."""
    sizes = {"head_dim": 128, "max_position_embeddings": 196608, "rms_norm_eps": 1e-6}
    file = file.reading(**sizes, rope_theta=5e6, partial_rotary_factor=1.0)
    file.ignore("*mtp*", "mlp_intermediate_size", "shared_moe_mode")
    # Options of MiniMax's earlier models, which have layers of linear attention and scaled residuals.
    if file.has("attn_type_list") and set(file.integers("attn_type_list")) != {1}:
        raise file.wrong("attn_type_list", "a list of 1")
    file.expect(shared_intermediate_size=0)
    file.expect(
        **dict.fromkeys((f"layernorm_{part}_beta" for part in ("full_attention", "linear_attention", "mlp")), 1)
    )
    expected = {"qk_norm_type": "per_layer", "scoring_func": "sigmoid"}
    for key, value in expected.items():
        if file.text(key, value) != value:
            raise file.wrong(key, repr(value))
    for key in ("use_qk_norm", "use_routing_bias"):
        if not file.boolean(key, True):
            raise file.wrong(key, "true")
    if file.has("rotary_dim"):
        part = file.integer("rotary_dim") / file.integer("head_dim")
        file = file.reading(partial_rotary_factor=part)
    options = read_llama(file)
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(norm=layer.attention_norm, norm_over="all") for layer in options["layers"]),
        count=file.integer("num_local_experts", 256),
        per_token=file.integer("num_experts_per_tok", 8),
        size=options["intermediate_size"],
        router=RouterPlan(kind="sigmoid", correction=True, normalised=True),
    )
    return ModelConfig(architecture=architecture, **options)


BLOCK = "model.layers.*.block_sparse_moe"
NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("block_sparse_moe", "w1", "w3", "w2"),
    "layers.*.mlp.router": Source(BLOCK, endings={"weight": ".gate.weight", "correction": ".e_score_correction_bias"}),
}

FAMILY = Family(read_config, weight_names=NAMES)
