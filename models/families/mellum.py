"""Mellum 2: Qwen 3 with experts, where layers with a window have a rotary embedding of their own."""

from jaxllm.models.checkpoint.config_file import ConfigFile
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
from jaxllm.models.families.family import LLAMA_NAMES, Family, expert_names
from jaxllm.models.mlp_plan import RouterPlan

_ROPES = {FULL: {"rope_theta": 500_000.0}, SLIDING: {"rope_theta": 10_000.0}}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mellum's configuration. The layer that predicts a further token is not used."""
    sizes = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 131_072}
    file = file.reading({"num_experts": "num_local_experts"}, **sizes, rope_parameters=_ROPES)
    file.ignore("num_mtp_layers", "num_nextn_predict_layers", "mtp_*")
    ropes = read_ropes(file)
    options, bias = read_llama(file, rope=ropes[FULL]), file.boolean("attention_bias", False)
    layers = tuple(
        layer.attending(norm=options["norm"]) for layer in with_biases(options["layers"], qkv=bias, output=bias)
    )
    count, window = len(layers), file.optional_integer("sliding_window", 1024) or 0
    sliding = {"window": window, "rope": ropes[SLIDING]}
    layers = with_types(layers, layer_types(file, count, [FULL] * count), full={}, sliding=sliding)
    types = mlp_types(file, count, dense=0)
    options["layers"] = with_experts(
        file,
        layers,
        only=[layer for layer, kind in enumerate(types) if kind == "sparse"],
        count=file.integer("num_experts", 64),
        per_token=file.integer("num_experts_per_tok", 8),
        size=file.integer("moe_intermediate_size", 896),
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", True)),
    )
    return ModelConfig(architecture=architecture, **options)


FAMILY = Family(read_config, weight_names={**LLAMA_NAMES, **expert_names("mlp")}, other_parts=("mtp.",))
