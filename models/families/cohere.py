"""Command R and R7B (Cohere 1 and 2): parallel blocks after one norm, neighbours rotated in pairs, scaled logits."""

from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    every_nth_full,
    layer_types,
    read_llama,
    with_biases,
    with_types,
)
from jaxllm.models.families.family import Family
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


def read_parallel(file: ConfigFile, norm: NormPlan | None = None) -> tuple[dict[str, Any], NormPlan]:
    """The embeddings and parallel layers that all have, and their norm, which may be given."""
    ids = {"bos_token_id": 5, "eos_token_id": 255001}
    file = file.reading(**ids, max_position_embeddings=8192, rope_theta=500_000.0, tie_word_embeddings=True)
    norm = norm or NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-5))
    options, bias = read_llama(file, interleaved=True), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = tuple(replace(layer, attention_norm=norm, mlp_norm=None, is_parallel=True) for layer in layers)
    return options | {"norm": norm, "output": OutputPlan(scale=file.number("logit_scale", 0.0625))}, norm


FAMILY = Family(read_cohere)
COHERE2 = Family(read_cohere2)
