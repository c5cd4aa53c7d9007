"""Command R and R7B (Cohere 1 and 2), and Compass: parallel blocks after one norm, scaled logits."""

from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    every_nth_full,
    layer_types,
    read_llama,
    with_biases,
    with_types,
)
from jaxllm.models.families.family import Family
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import OutputPlan


def read_cohere(file: ConfigFile, architecture: str) -> ModelConfig:
    """Cohere's configuration; heads may have norms, each with a weight of its own."""
    file.ignore("model_max_length")  # longer than what it was trained on
    options, norm = read_parallel(file)
    if file.boolean("use_qk_norm", False):
        layers = options["layers"]
        options["layers"] = tuple(layer.attending(norm=norm, norm_over="heads") for layer in layers)
    return ModelConfig(architecture=architecture, **options)


def read_cohere2(file: ConfigFile, architecture: str) -> ModelConfig:
    """Cohere 2's: three of four layers have a window, and the others do not see positions."""
    file = file.reading(sliding_window=4096, rope_theta=10000.0)
    file.expect(layer_switch=file.integer("sliding_window_pattern", 4), order_of_interleaved_layers="local_attn_first")
    file.expect(rotary_pct=1.0, use_gated_activation=True, use_parallel_block=True)
    file.expect(use_embedding_sharing=True, use_parallel_embedding=True)
    options, _ = read_parallel(file)
    count = len(options["layers"])
    types = layer_types(file, count, every_nth_full(count, file.integer("sliding_window_pattern", 4)))
    window = file.optional_integer("sliding_window") or 0
    sliding = {"window": window} if window else {"rope": None}
    options["layers"] = with_types(options["layers"], types, full={"rope": None}, sliding=sliding)
    return ModelConfig(architecture=architecture, **options)


def read_compass(file: ConfigFile, architecture: str) -> ModelConfig:
    """The language model of Cohere Compass: halves of heads are rotated, as options of each kind of layer say."""
    file = file.reading(sliding_window=4096, rope_theta=10000.0)
    # Of use to classifiers alone.
    file.ignore("pooling")
    scale = file.optional_number("logit_scale")
    file, ropes = file.but(logit_scale=1.0 if scale is None else scale), _read_ropes(file)
    options, _ = read_parallel(file, rope=ropes[FULL] or RopeConfig())
    count = len(options["layers"])
    full = {"rope": ropes[FULL]}
    sliding = {"rope": ropes[SLIDING], "window": file.optional_integer("sliding_window") or 0}
    kinds = layer_types(file, count, [FULL] * count)
    options["layers"] = with_types(options["layers"], kinds, full=full, sliding=sliding)
    return ModelConfig(architecture=architecture, **options)


def _read_ropes(file: ConfigFile) -> dict[str, RopeConfig | None]:
    """The rotary embedding of each kind of layer; None: it does not see positions."""
    whole = file.section("rope_parameters")
    kinds = (FULL, SLIDING)
    if whole is None or not any(kind in whole.values for kind in kinds):
        return dict.fromkeys(kinds, read_rope(file, whole))
    parts = {kind: whole.section(kind) for kind in kinds}
    for part in parts.values():
        if part is not None:
            # Positions of texts are the same in all sections.
            part.ignore("mrope_section", "mrope_interleaved")
    return {kind: None if part is None else read_rope(file, part) for kind, part in parts.items()}


def read_parallel(
    file: ConfigFile, norm: NormPlan | None = None, rope: RopeConfig | None = None
) -> tuple[dict[str, Any], NormPlan]:
    """The embeddings and parallel layers that all have, and their norm; that and the rotary embedding may be given."""
    ids = {"bos_token_id": 5, "eos_token_id": 255001}
    file = file.reading(**ids, max_position_embeddings=8192, rope_theta=500_000.0, tie_word_embeddings=True)
    norm = norm or NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-5))
    options, bias = read_llama(file, interleaved=True, rope=rope), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = tuple(replace(layer, attention_norm=norm, mlp_norm=None, is_parallel=True) for layer in layers)
    return options | {"norm": norm, "output": OutputPlan(scale=file.number("logit_scale", 0.0625))}, norm


FAMILY = Family(read_cohere)
COHERE2 = Family(read_cohere2)
COMPASS = Family(read_compass)
