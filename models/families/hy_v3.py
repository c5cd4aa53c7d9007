"""Hy3: Llama with norms on heads, and experts by the sigmoid of their scores alongside one that all tokens have."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import mlp_types, read_llama, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names, further_layers
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan

_DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 11_158_840.0,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Hy3's configuration. Layers that predict further tokens are not used."""
    file = file.reading({"num_experts": "num_local_experts"}, **_DEFAULTS)
    # The first is about the order of rounding, the others are options of the authors' own code for what it does here.
    file.ignore("enable_moe_fp32_combine", "enable_lm_head_fp32", "enable_attention_fp32_softmax", "*nextn_predict*")
    file.expect(qk_norm=True, route_norm=True, moe_router_enable_expert_bias=True, moe_router_use_sigmoid=True)
    file.expect(expert_hidden_dim=file.integer("moe_intermediate_size", 1536))
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    # Experts have no biases, but the other MLPs may.
    mlp_bias = file.boolean("mlp_bias", False)
    biased = with_biases(options["layers"], qkv=bias, output=bias)
    layers = tuple(layer.attending(norm=options["norm"]) for layer in biased)
    types = mlp_types(file, len(layers), dense=file.integer("first_k_dense_replace", 1, minimum=0))
    size, shared = file.integer("moe_intermediate_size", 1536), file.integer("num_shared_experts", 1)
    mixed = with_experts(
        file,
        layers,
        only=[layer for layer, kind in enumerate(types) if kind == "sparse"],
        count=file.integer("num_experts", 192),
        per_token=file.integer("num_experts_per_tok", 8),
        size=size,
        router=RouterPlan(
            kind="sigmoid",
            correction=True,
            normalised=True,
            epsilon=1e-20,
            scale=file.number("router_scaling_factor", 2.826),
        ),
        shared=MLPPlan(activation=layers[0].mlp.activation, bias=mlp_bias, size=size * shared),
    )
    options["layers"] = tuple(
        replace(layer, mlp=replace(layer.mlp, bias=mlp_bias)) if isinstance(layer.mlp, MLPPlan) else layer
        for layer in mixed
    )
    return ModelConfig(architecture=architecture, **options)


BLOCK = "model.layers.*.mlp"
NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.mlp.router": Source(BLOCK, endings={"weight": ".router.gate.weight", "correction": ".expert_bias"}),
    "layers.*.mlp.shared.gate": f"{BLOCK}.shared_mlp.gate_proj",
    "layers.*.mlp.shared.up": f"{BLOCK}.shared_mlp.up_proj",
    "layers.*.mlp.shared.down": f"{BLOCK}.shared_mlp.down_proj",
}

FAMILY = Family(
    read_config, weight_names=NAMES, other_parts=further_layers, synonyms={"mlp.shared_experts": "mlp.shared_mlp"}
)
