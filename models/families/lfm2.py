"""LFM2: gated short convolutions in most layers and attention in the others; and with experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL, read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import RouterPlan
from jaxllm.models.recurrent_plan import ShortConvolutionPlan

CONVOLUTION = "conv"
SAME_SIZES = ("block_dim", "conv_dim", "conv_dim_out")
"""Options that say the hidden size once more."""

DEFAULTS: Mapping[str, Any] = {
    "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Names in transformers' configuration."""


def read_lfm2(file: ConfigFile, architecture: str) -> ModelConfig:
    """LFM2's configuration."""
    file = file.reading({"intermediate_size": "block_ff_dim"}, intermediate_size=12288)
    options = _options(file) | {"intermediate_size": _feed_forward(file)}
    return ModelConfig(architecture=architecture, **options)


def read_lfm2_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of LFM2 with experts, except in the first layers."""
    options = _options(file)
    layers = options["layers"]
    options["layers"] = with_experts(
        file,
        layers,
        only=range(file.integer("num_dense_layers", 2, minimum=0), len(layers)),
        count=file.integer("num_experts", 32),
        per_token=file.integer("num_experts_per_tok", 4),
        size=file.integer("moe_intermediate_size"),
        router=RouterPlan(
            kind="sigmoid",
            correction=file.boolean("use_expert_bias", True),
            normalised=file.boolean("norm_topk_prob", True),
            epsilon=1e-6,
            scale=file.number("routed_scaling_factor", 1.0),
        ),
    )
    return ModelConfig(architecture=architecture, **options)


def _options(file: ConfigFile) -> dict[str, Any]:
    file.ignore("block_*_init*", "conv_use_xavier_init", "block_norm_eps", "num_heads", "theta", "full_attn_idxs")
    file = file.reading({"rms_norm_eps": "norm_eps", "tie_word_embeddings": "tie_embedding"}, **DEFAULTS)
    size = file.integer("hidden_size")
    for key in SAME_SIZES:
        if file.integer(key, size) != size:
            raise file.wrong(key, f"the hidden size, {size}")
    for key in ("block_use_swiglu", "use_pos_enc"):
        if not file.boolean(key, True):
            raise file.wrong(key, "true")
    options = read_llama(file)
    plan = ShortConvolutionPlan(
        channels=size, width=file.integer("conv_L_cache", 3, minimum=2), bias=file.boolean("conv_bias", False)
    )
    layers = (layer.attending(norm=layer.attention_norm) for layer in options["layers"])
    kinds = _kinds(file, len(options["layers"]))
    options["layers"] = tuple(
        layer if kind == FULL else replace(layer, recurrence=plan) for layer, kind in zip(layers, kinds, strict=True)
    )
    return options


def _kinds(file: ConfigFile, count: int) -> list[str]:
    """For each layer, `FULL` or `CONVOLUTION`. Raises `ModelError` for others."""
    if not file.has("layer_types"):
        full = file.integers("full_attn_idxs") if file.has("full_attn_idxs") else range(count)
        return [FULL if layer in full else CONVOLUTION for layer in range(count)]
    kinds = file.texts("layer_types")
    if len(kinds) != count:
        raise ModelError(f"{file.source}: 'layer_types' has {len(kinds)} entries for {count} layers")
    unknown = sorted(set(kinds) - {FULL, CONVOLUTION})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")
    return kinds


def _feed_forward(file: ConfigFile) -> int:
    """Size of the feed-forward blocks, from what the configuration calls it."""
    size, multiple = file.integer("intermediate_size"), file.integer("block_multiple_of", 256)
    factor = file.number("block_ffn_dim_multiplier", 1.0)
    if not file.boolean("block_auto_adjust_ff_dim", True):
        return size
    size = int(factor * int(2 * size / 3))
    return -(-size // multiple) * multiple


def weight_names(config: ModelConfig) -> Names:
    """The inputs of a convolution and of its gates are one tensor."""
    size, block = config.hidden_size, "model.layers.*.feed_forward"
    inputs = fused("model.layers.*.conv.in_proj", {"b": size, "c": size, "x": size})
    return {
        **LLAMA_NAMES,
        "norm": "model.embedding_norm",
        "layers.*.attention_norm": "model.layers.*.operator_norm",
        "layers.*.attention.output": "model.layers.*.self_attn.out_proj",
        "layers.*.attention.query_norm": "model.layers.*.self_attn.q_layernorm",
        "layers.*.attention.key_norm": "model.layers.*.self_attn.k_layernorm",
        **{f"layers.*.recurrence.{name}": source for name, source in inputs.items()},
        "layers.*.recurrence.convolution": "model.layers.*.conv.conv",
        "layers.*.recurrence.output": "model.layers.*.conv.out_proj",
        "layers.*.mlp_norm": "model.layers.*.ffn_norm",
        "layers.*.mlp.gate": f"{block}.w1",
        "layers.*.mlp.up": f"{block}.w3",
        "layers.*.mlp.down": f"{block}.w2",
        **expert_names("feed_forward", "w1", "w3", "w2"),
        "layers.*.mlp.router": Source(block, endings={"weight": ".gate.weight", "correction": ".expert_bias"}),
    }


FAMILY = Family(read_lfm2, weight_names=weight_names)
MOE = Family(read_lfm2_moe, weight_names=weight_names)
