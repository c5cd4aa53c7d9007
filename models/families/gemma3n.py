"""Gemma 3n: alternating updates, sparse activations, inputs by token, layers that read the keys of others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    every_nth_full,
    layer_types,
    read_llama,
    read_ropes,
    text_part,
    with_biases,
    with_norms,
    with_types,
)
from jaxllm.models.families.family import SANDWICH_NAMES, TEXT_PARTS, Family, Names
from jaxllm.models.families.gemma4 import (
    TOKEN_INPUT_NAMES,
    norm_without,
    other_parts,
    with_sources,
    with_token_inputs,
)
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import AltUpPlan, EmbeddingPlan, LayerPlan, OutputPlan

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "rope_theta": 1_000_000.0,
    "num_kv_shared_layers": 15,
    "final_logit_softcapping": 30.0,
}


def read_gemma3n(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma 3n's configuration."""
    given = text_part(file).reading(**_DEFAULTS)
    count = given.integer("num_hidden_layers")
    sizes = _sizes(given, count)
    file = given.but(intermediate_size=sizes[0]).reading({"hidden_act": "hidden_activation"}, **_DEFAULTS)
    ropes = read_ropes(file, local_theta=file.number("rope_local_base_freq", 10_000.0))
    options, norm = read_llama(file, rope=ropes[FULL]), NormPlan(eps=file.number("rms_norm_eps", 1e-6))
    bias, types = file.boolean("attention_bias", False), layer_types(file, count, every_nth_full(count, 5))
    layers = with_norms(
        with_biases(options["layers"], qkv=bias, output=bias), attention_output_norm=norm, mlp_output_norm=norm
    )
    layers = with_types(
        [layer.attending(norm=norm, value_norm=norm_without(norm), scale=1.0) for layer in layers],
        types,
        full={},
        sliding={"rope": ropes[SLIDING], "window": file.optional_integer("sliding_window", 512) or 0},
    )
    layers = _with_blocks(with_sources(file, layers, types), sizes, _sparsities(file, count), _altup(file, norm))
    each, layers = with_token_inputs(file, layers, norm, 256)
    if each is None:
        raise file.wrong("hidden_size_per_layer_input", "at least 1")
    return ModelConfig(
        architecture=architecture,
        **options
        | {
            "layers": layers,
            "norm": norm,
            "embedding": EmbeddingPlan(scale=options["hidden_size"] ** 0.5, scaled=True, each_layer=each),
            "output": OutputPlan(soft_cap=file.optional_number("final_logit_softcapping")),
        },
    )


def _sizes(file: ConfigFile, count: int) -> list[int]:
    """Those between the products of each layer's MLP."""
    if not isinstance(file.values["intermediate_size"], list):
        return [file.integer("intermediate_size")] * count
    sizes = file.integers("intermediate_size")
    if len(sizes) != count or min(sizes) < 1:
        raise file.wrong("intermediate_size", f"{count} positive integers, one for each layer")
    return sizes


def _sparsities(file: ConfigFile, count: int) -> list[float]:
    """The share of gates that each layer sets to zero."""
    if not file.has("activation_sparsity_pattern"):
        return [0.95 if count > 10 and number < 10 else 0.0 for number in range(count)]
    shares = file.numbers("activation_sparsity_pattern")
    if len(shares) != count or not all(share < 1 for share in shares):
        raise file.wrong("activation_sparsity_pattern", f"{count} numbers below 1, one for each layer")
    return [max(share, 0.0) for share in shares]


def _altup(file: ConfigFile, norm: NormPlan) -> AltUpPlan:
    file.ignore("altup_coef_clip")  # in training
    count, active = file.integer("altup_num_inputs", 4), file.integer("altup_active_idx", 0, minimum=0)
    if active >= count:
        raise file.wrong("altup_active_idx", f"below 'altup_num_inputs', {count}")
    rank, scales = file.integer("laurel_rank", 64), file.boolean("altup_correct_scale", True)
    return AltUpPlan(count=count, active=active, rank=rank, norm=norm, scales=scales)


def _with_blocks(
    layers: Sequence[LayerPlan], sizes: Sequence[int], sparsities: Sequence[float], altup: AltUpPlan
) -> tuple[LayerPlan, ...]:
    """The layers with their MLPs and alternating updates."""
    found = []
    for layer, size, sparsity in zip(layers, sizes, sparsities, strict=True):
        assert isinstance(layer.mlp, MLPPlan)
        found.append(replace(layer, mlp=replace(layer.mlp, size=size, sparsity=sparsity), streams=altup))
    return tuple(found)


_ALTUP, _LAUREL = "model.layers.*.altup", "model.layers.*.laurel"

NAMES: Names = {
    **SANDWICH_NAMES,
    **TOKEN_INPUT_NAMES,
    "streams.spread.*": "model.altup_projections.*",
    "streams.join.*": "model.altup_unembed_projections.*",
    "layers.*.altup": Source(_ALTUP, endings={"scale": ".correct_output_scale"}),
    "layers.*.altup.router": f"{_ALTUP}.modality_router",
    "layers.*.altup.router_norm": f"{_ALTUP}.router_norm",
    "layers.*.altup.prediction": f"{_ALTUP}.prediction_coefs",
    "layers.*.altup.correction": f"{_ALTUP}.correction_coefs",
    "layers.*.laurel.left": f"{_LAUREL}.linear_left",
    "layers.*.laurel.right": f"{_LAUREL}.linear_right",
    "layers.*.laurel.norm": f"{_LAUREL}.post_laurel_norm",
}

FAMILY = Family(read_gemma3n, weight_names=NAMES, renamed=TEXT_PARTS, other_parts=other_parts)
