"""Laguna (Poolside): a number of query heads for each layer, gates after attention, experts after the first layer."""

from typing import Literal

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, WithoutBias
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    layer_types,
    mlp_types,
    read_llama,
    read_ropes,
    with_biases,
    with_experts,
    with_types,
)
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan
from jaxllm.models.plan import LayerPlan

_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
}
_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072, "sliding_window": 512}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Laguna's configuration."""
    names = {"num_experts": "num_local_experts"}
    file = file.reading(names, **_DEFAULTS, rope_parameters=_ROPES, partial_rotary_factor=1.0)
    file.expect(moe_apply_router_weight_on_input=False)
    ropes = read_ropes(file)
    options, bias = read_llama(file, rope=ropes[FULL]), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    count, window = len(layers), file.integer("sliding_window")
    types = layer_types(file, count, [FULL] * count)
    layers = with_types(layers, types, full={}, sliding={"rope": ropes[SLIDING], "window": window})
    gated = {"norm": options["norm"], "output_gate": _gate(file), "gate_activation": "softplus"}
    layers = tuple(layer.attending(**gated, num_heads=heads) for layer, heads in zip(layers, _heads(file), strict=True))
    options["layers"] = _with_experts(file, layers)
    return ModelConfig(architecture=architecture, **options)


def _gate(file: ConfigFile) -> Literal["elements", "heads"]:
    """What the gate has a number for."""
    given = file.values.get("gating", True)
    if given is True:
        file.ignore("gating")
        return "heads"
    kinds: dict[str, Literal["elements", "heads"]] = {"per-head": "heads", "per-element": "elements"}
    if not isinstance(given, str) or given not in kinds:
        raise file.wrong("gating", "true, 'per-head' or 'per-element'")
    return kinds[file.text("gating")]


def _heads(file: ConfigFile) -> list[int]:
    """Query heads of each layer. Raises `ModelError` for numbers that KV heads do not divide."""
    count, key = file.integer("num_hidden_layers"), "num_attention_heads_per_layer"
    heads = file.integers(key) if file.has(key) else [file.integer("num_attention_heads")] * count
    of_keys = file.integer("num_key_value_heads")
    if len(heads) != count or any(each < 1 or each % of_keys for each in heads):
        raise file.wrong(key, f"a list of {count} multiples of 'num_key_value_heads', {of_keys}")
    return heads


def _with_experts(file: ConfigFile, layers: tuple[LayerPlan, ...]) -> tuple[LayerPlan, ...]:
    """The same layers with experts, but for dense ones."""
    types = mlp_types(file, len(layers), dense=1)
    router = RouterPlan(
        kind="sigmoid",
        correction=True,
        normalised=True,
        scale=file.number("moe_routed_scaling_factor", 1.0),
        soft_cap=file.number("moe_router_logit_softcapping", 0.0) or None,
    )
    return with_experts(
        file,
        layers,
        only=[layer for layer, kind in enumerate(types) if kind == "sparse"],
        count=file.integer("num_experts", 256),
        per_token=file.integer("num_experts_per_tok", 8),
        size=file.integer("moe_intermediate_size", 512),
        router=router,
        shared=MLPPlan(activation=layers[0].mlp.activation, size=file.integer(_SHARED, 512)),
    )


_SHARED = "shared_expert_intermediate_size"


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; where the other products have biases, that of gates has none."""
    gate = Source("model.layers.*.self_attn.g_proj", WithoutBias(config.hidden_size), endings={"bias": ".weight"})
    block = "model.layers.*.mlp"
    return {
        **LLAMA_NAMES,
        **expert_names("mlp"),
        "layers.*.attention.gate": gate,
        "layers.*.mlp.router": Source(
            block, endings={"weight": ".gate.weight", "correction": ".experts.e_score_correction_bias"}
        ),
        "layers.*.mlp.shared.gate": f"{block}.shared_expert.gate_proj",
        "layers.*.mlp.shared.up": f"{block}.shared_expert.up_proj",
        "layers.*.mlp.shared.down": f"{block}.shared_expert.down_proj",
    }


FAMILY = Family(read_config, weight_names=weight_names, synonyms={"shared_experts": "shared_expert"})
