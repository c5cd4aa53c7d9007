"""LFM2: gated short convolutions in most layers and attention in the others; and with experts. LFM3 adds windows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, WithoutBias, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL, SLIDING, read_llama, read_ropes, with_biases, with_experts
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


def read_lfm3(file: ConfigFile, architecture: str) -> ModelConfig:
    """LFM3's configuration: attention with windows in some layers, gates of its heads, and norms after the blocks."""
    file = file.reading({"rms_norm_eps": "norm_eps"}, **_LFM3, rope_parameters=_LFM3_ROPES)
    ropes = read_ropes(file)
    options, size = read_llama(file, rope=ropes[FULL]), file.integer("hidden_size")
    norm, count, bias = options["norm"], len(options["layers"]), file.boolean("attention_bias", False)
    behind = norm if file.boolean("use_sandwich_norm", True) else None
    gate = "heads" if file.boolean("use_attention_gate", True) else None
    full, *_ = with_biases(options["layers"], qkv=bias, output=bias)
    full = replace(full, attention_output_norm=behind, mlp_output_norm=behind).attending(norm=norm, output_gate=gate)
    window = file.optional_integer("sliding_window") or 0
    by_kind = {
        FULL: full,
        SLIDING: full.attending(rope=ropes[SLIDING], window=window),
        CONVOLUTION: replace(full, recurrence=_convolution(file, size, 7)),
    }
    default = [FULL if layer % 4 == 2 else CONVOLUTION if layer % 4 or not layer else SLIDING for layer in range(count)]
    kinds = file.texts("layer_types") if file.has("layer_types") else default
    _check_kinds(file, kinds, count, by_kind)
    return ModelConfig(architecture=architecture, **options | {"layers": tuple(by_kind[kind] for kind in kinds)})


_LFM3: Mapping[str, Any] = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": 256,
    "bos_token_id": 124_894,
    "eos_token_id": 124_900,
}
_LFM3_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
}


def _convolution(file: ConfigFile, size: int, width: int) -> ShortConvolutionPlan:
    """A convolution over so many tokens, unless the file says otherwise."""
    bias = file.boolean("conv_bias", False)
    return ShortConvolutionPlan(channels=size, width=file.integer("conv_L_cache", width, minimum=2), bias=bias)


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
    plan = _convolution(file, size, 3)
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
    _check_kinds(file, kinds, count, (FULL, CONVOLUTION))
    return kinds


def _check_kinds(file: ConfigFile, kinds: Sequence[str], count: int, known: Collection[str]) -> None:
    """Raise `ModelError` unless there is a known kind for each layer."""
    if len(kinds) != count:
        raise ModelError(f"{file.source}: 'layer_types' has {len(kinds)} entries for {count} layers")
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")


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


def lfm3_names(config: ModelConfig) -> Names:
    """Names of LFM3, which has norms after its blocks and calls some parts otherwise."""
    attention = "model.layers.*.self_attn"
    gate = Source(f"{attention}.gate_proj", WithoutBias(config.hidden_size), endings={"bias": ".weight"})
    return {
        **weight_names(config),
        "layers.*.attention.gate": gate,
        "layers.*.attention.output": f"{attention}.o_proj",
        "layers.*.attention.query_norm": f"{attention}.q_norm",
        "layers.*.attention.key_norm": f"{attention}.k_norm",
        "layers.*.attention_output_norm": "model.layers.*.post_operator_norm",
        "layers.*.mlp_output_norm": "model.layers.*.post_ffn_norm",
    }


FAMILY = Family(read_lfm2, weight_names=weight_names)
MOE = Family(read_lfm2_moe, weight_names=weight_names)
LFM3 = Family(read_lfm3, weight_names=lfm3_names, synonyms={"g_proj": "gate_proj"})
