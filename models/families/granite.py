"""Granite 3, HyperCLOVA X and MiniCPM: Llama with multipliers on embeddings, residuals, scores and logits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, SLIDING, layer_types, read_llama, with_biases, with_norms, with_types
from jaxllm.models.families.family import LLAMA_NAMES, Family
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan


def read_granite(file: ConfigFile, architecture: str) -> ModelConfig:
    """Granite's configuration."""
    file = file.reading(attention_multiplier=1.0, bos_token_id=1, eos_token_id=2)
    return _multiplied(file, architecture, logits=1 / file.positive("logits_scaling", 1.0))


def read_granite_swa(file: ConfigFile, architecture: str) -> ModelConfig:
    """Granite with windows on most layers, sinks, and a base of the rotary embedding for each layer; 0 is none."""
    defaults = {"num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
    ids = {"bos_token_id": 100257, "eos_token_id": 100257}
    file = file.reading(**defaults, **ids, tie_word_embeddings=True)
    config = read_granite(file, architecture)
    return replace(config, layers=with_sinks_and_windows(file, config.layers))


def with_sinks_and_windows(file: ConfigFile, layers: Sequence[LayerPlan]) -> tuple[LayerPlan, ...]:
    """The same layers with sinks, windows on three of four, and the rotary embedding that each has."""
    count, window = len(layers), file.optional_integer("sliding_window", 128) or 0
    types = layer_types(file, count, [SLIDING if layer % 4 else FULL for layer in range(count)])
    windowed = with_types(layers, types, full={}, sliding={"window": window})
    layers = tuple(layer.attending(sinks=True) for layer in windowed)
    if file.has("layer_rope_theta"):
        bases = file.numbers("layer_rope_theta")
        if len(bases) != count or min(bases) < 0:
            raise file.wrong("layer_rope_theta", f"a list of {count} numbers, none below 0")
        layers = tuple(_based(layer, base) for layer, base in zip(layers, bases, strict=True))
    return layers


def read_hyperclovax(file: ConfigFile, architecture: str) -> ModelConfig:
    """HyperCLOVA X's: Granite's with norms after the blocks, and logits that are multiplied."""
    config = _multiplied(file.reading(bos_token_id=1, eos_token_id=2), architecture, file.number("logits_scaling", 1.0))
    if not file.boolean("use_post_norm", True):
        return config
    norms = {"attention_output_norm": config.norm, "mlp_output_norm": config.norm}
    return replace(config, layers=with_norms(config.layers, **norms))


def read_minicpm(file: ConfigFile, architecture: str) -> ModelConfig:
    """MiniCPM's, as published with its checkpoints."""
    file.ignore("mup_denominator")  # of the learning rate
    file = file.reading(max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True)
    options = read_llama(file)
    return scaled(
        architecture,
        options,
        embedding=EmbeddingPlan(scale=file.number("scale_emb", 1.0), scaled=True),
        residual=file.number("scale_depth", 1.0) / len(options["layers"]) ** 0.5,
        logits=file.number("dim_model_base", options["hidden_size"]) / options["hidden_size"],
    )


def _based(layer: LayerPlan, base: float) -> LayerPlan:
    rope = layer.attention.rope
    assert rope is not None
    return layer.attending(rope=replace(rope, theta=base) if base else None)


def _multiplied(file: ConfigFile, architecture: str, logits: float) -> ModelConfig:
    """With the multipliers that Granite names, `logits` but for that."""
    file = file.reading(max_position_embeddings=2048)
    bias, options = file.boolean("attention_bias", False), read_llama(file)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=file.boolean("mlp_bias", False))
    scale = file.optional_number("attention_multiplier")
    options["layers"] = tuple(layer.attending(scale=scale) for layer in layers)
    return scaled(
        architecture,
        options,
        embedding=EmbeddingPlan(scale=file.number("embedding_multiplier", 1.0)),
        residual=file.number("residual_multiplier", 1.0),
        logits=logits,
    )


def scaled(
    architecture: str, options: dict[str, Any], *, embedding: EmbeddingPlan, residual: float, logits: float
) -> ModelConfig:
    """The configuration with multipliers of embeddings, of what blocks add to the residual, and of logits."""
    layers = tuple(replace(layer, residual_scale=residual) for layer in options["layers"])
    scales = {"embedding": embedding, "output": OutputPlan(scale=logits)}
    return ModelConfig(architecture=architecture, **(options | {"layers": layers} | scales))


FAMILY = Family(read_granite)
SWA = Family(read_granite_swa, weight_names={**LLAMA_NAMES, "layers.*.attention": "model.layers.*.self_attn"})
HYPERCLOVAX = Family(
    read_hyperclovax,
    weight_names={
        **LLAMA_NAMES,
        "layers.*.attention_output_norm": "model.layers.*.post_norm1",
        "layers.*.mlp_output_norm": "model.layers.*.post_norm2",
    },
)
MINICPM = Family(read_minicpm, like="Granite")
