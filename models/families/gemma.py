"""Gemma 1 to 3: norms around zero, scaled embeddings; 2 and 3 also norms after blocks, and windows."""

from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    every_nth_full,
    layer_types,
    read_llama,
    read_ropes,
    text_part,
    with_biases,
    with_norms,
    with_types,
)
from jaxllm.models.families.family import OTHER_PARTS, SANDWICH_NAMES, TEXT_PARTS, Family
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, OutputPlan

_TANH = "gelu_pytorch_tanh"


def read_gemma(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma's configuration. The first releases say gelu, and mean its approximation."""
    file = file.reading({"hidden_act": "hidden_activation"}, **_DEFAULTS, head_dim=256)
    options = _options(file)
    if file.text("hidden_act") == "gelu":
        layers = [replace(layer, mlp=replace(layer.mlp, activation=_TANH)) for layer in options["layers"]]
        options["layers"] = tuple(layers)
    return ModelConfig(architecture=architecture, **options)


def read_gemma2(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma 2's: every other layer has a window, scores and logits are capped."""
    defaults = {"head_dim": 256, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096}
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    file = file.reading({"hidden_act": "hidden_activation"}, **_DEFAULTS, **defaults, **caps)
    options = _sandwiched(file)
    types = layer_types(file, len(options["layers"]), every_nth_full(len(options["layers"]), 2))
    window = {"window": file.optional_integer("sliding_window") or 0}
    file.expect(sliding_window_size=file.optional_integer("sliding_window"))
    options["layers"] = with_types(options["layers"], types, full={}, sliding=window)
    return ModelConfig(architecture=architecture, **options)


def read_vaultgemma(file: ConfigFile, architecture: str) -> ModelConfig:
    """VaultGemma's: Gemma 2 without norms after its blocks."""
    config = read_gemma2(file, architecture)
    return replace(config, layers=with_norms(config.layers, attention_output_norm=None, mlp_output_norm=None))


def read_gemma3(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma 3's: five of six layers have a window and a rotary embedding of their own, heads are normalised.

    EmbeddingGemma is one that sees both sides.
    """
    file = text_part(file).reading({"hidden_act": "hidden_activation"}, **(_DEFAULTS | _GEMMA3))
    ropes = read_ropes(file, local_theta=file.number("rope_local_base_freq", 10000.0))
    if file.has("attn_logit_softcapping"):
        raise file.wrong("attn_logit_softcapping", "null: transformers does not cap Gemma 3's scores")
    whole = ropes["full_attention"]
    if whole.kind == "linear":
        # Its positions count the stretched ones already.
        whole = replace(whole, trained_length=int(whole.trained_length / whole.factor))
    options = _sandwiched(file, whole)
    layers = options["layers"]
    types = layer_types(file, len(layers), every_nth_full(len(layers), file.integer("sliding_window_pattern", 6)))
    window = file.optional_integer("sliding_window") or 0
    options["layers"] = with_types(
        [layer.attending(norm=layer.attention_norm) for layer in layers],
        types,
        full={},
        sliding={"rope": ropes["sliding_attention"], "window": window},
    )
    config = ModelConfig(architecture=architecture, **options)
    return config.bidirectional() if file.boolean("use_bidirectional_attention", False) else config


_DEFAULTS: dict[str, Any] = {
    "hidden_act": _TANH,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

_GEMMA3: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 131_072,
}


def _options(file: ConfigFile, rope: RopeConfig | None = None) -> dict[str, Any]:
    """The names that all three have."""
    options, norm = read_llama(file, rope=rope), NormPlan(eps=file.number("rms_norm_eps", 1e-6), offset=1.0)
    bias = file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    return options | {
        "layers": with_norms(layers, attention_norm=norm, mlp_norm=norm),
        "norm": norm,
        "embedding": EmbeddingPlan(scale=options["hidden_size"] ** 0.5, scaled=True),
    }


def _sandwiched(file: ConfigFile, rope: RopeConfig | None = None) -> dict[str, Any]:
    """The additions of Gemma 2 and 3."""
    options = _options(file, rope)
    cap, scale = file.optional_number("attn_logit_softcapping"), file.positive("query_pre_attn_scalar") ** -0.5
    layers = with_norms(options["layers"], attention_output_norm=options["norm"], mlp_output_norm=options["norm"])
    return options | {
        "layers": tuple(layer.attending(soft_cap=cap, scale=scale) for layer in layers),
        "output": OutputPlan(soft_cap=file.optional_number("final_logit_softcapping")),
    }


FAMILY = Family(read_gemma)
GEMMA2 = Family(read_gemma2, weight_names=SANDWICH_NAMES)
VAULTGEMMA = Family(read_vaultgemma, weight_names=SANDWICH_NAMES)
GEMMA3 = Family(read_gemma3, weight_names=SANDWICH_NAMES, renamed=TEXT_PARTS, other_parts=OTHER_PARTS)
