"""Kolibri 1: EXAONE's attention, norms before and after the blocks, and experts in every layer."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    every_nth_full,
    layer_types,
    read_llama,
    with_experts,
    with_norms,
    with_types,
)
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan

_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262_144, "sliding_window": 513}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Kolibri's configuration. Where some layers have windows, the others do not see positions."""
    names = {"num_local_experts": "num_experts"}
    # There is no other MLP whose size would be needed.
    file = file.reading(names, **_DEFAULTS).but(intermediate_size=file.integer("moe_intermediate_size", 512))
    options = read_llama(file)
    norm, count, window = options["norm"], len(options["layers"]), file.optional_integer("sliding_window")
    types = layer_types(file, count, every_nth_full(count, 5))
    if window is None and set(types) != {FULL}:
        raise file.wrong("sliding_window", "positive, as 'layer_types' has layers with windows")
    layers = with_norms(options["layers"], attention_output_norm=norm, mlp_output_norm=norm)
    if window is not None:
        layers = with_types(layers, types, full={"rope": None}, sliding={"window": window})
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(norm=norm) for layer in layers),
        count=file.integer("num_local_experts", 384),
        per_token=file.integer("num_experts_per_tok", 6),
        size=file.integer("moe_intermediate_size", 512),
        router=RouterPlan(kind="chosen_sigmoid", correction=True, normalised=file.boolean("norm_topk_prob", False)),
        shared=MLPPlan(activation=layers[0].mlp.activation, size=file.integer("shared_expert_intermediate_size", 512)),
    )
    return ModelConfig(architecture=architecture, **options)


LAYER = "model.layers.*"
NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.attention_output_norm": f"{LAYER}.post_attn_norm",
    "layers.*.mlp_output_norm": f"{LAYER}.post_ffn_norm",
    "layers.*.mlp.router": Source(
        LAYER, endings={"weight": ".mlp.gate.weight", "correction": ".moe.router.expert_bias"}
    ),
    "layers.*.mlp.shared.gate": f"{LAYER}.mlp.shared_experts.gate_proj",
    "layers.*.mlp.shared.up": f"{LAYER}.mlp.shared_experts.up_proj",
    "layers.*.mlp.shared.down": f"{LAYER}.mlp.shared_experts.down_proj",
}

FAMILY = Family(read_config, weight_names=NAMES)
