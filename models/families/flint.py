"""Flint: Qwen 3 with sinks, experts by the sigmoid of their scores, and positions in layers with a window alone."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    layer_types,
    read_llama,
    sparse_layers,
    with_biases,
    with_experts,
    with_types,
)
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.families.qwen2_moe import SHARED_NAMES
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan

_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262_144, "sliding_window": 513}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Flint's configuration. The first two layers, the last and every fourth have no window."""
    names = {"num_experts": "num_local_experts"}
    file = file.reading(names, **_DEFAULTS, intermediate_size=6144, mlp_only_layers=[0, 1])
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    count, window = len(layers), file.integer("sliding_window")
    full = {0, count - 1, *range(1, count, 4)}
    types = layer_types(file, count, [FULL if layer in full else SLIDING for layer in range(count)])
    layers = with_types(layers, types, full={"rope": None}, sliding={"window": window})
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(norm=options["norm"], sinks=True) for layer in layers),
        only=sparse_layers(file, count),
        count=file.integer("num_experts", 256),
        per_token=file.integer("num_experts_per_tok", 6),
        size=file.integer("moe_intermediate_size", 512),
        router=RouterPlan(kind="sigmoid", normalised=file.boolean("norm_topk_prob", True)),
        shared=MLPPlan(activation=layers[0].mlp.activation, size=file.integer("shared_expert_intermediate_size", 1024)),
    )
    return ModelConfig(architecture=architecture, **options)


NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    **SHARED_NAMES,
    "layers.*.attention": Source("model.layers.*.self_attn", endings={"sinks": ".softmax_offset"}),
}

FAMILY = Family(read_config, weight_names=NAMES)
