"""OLMo 1 to 3: norms without weights; then norms after the blocks and over all heads; then windows."""

from dataclasses import replace

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    every_nth_full,
    layer_types,
    read_llama,
    read_ropes,
    with_biases,
    with_norms,
    with_types,
)
from jaxllm.models.families.family import SANDWICH_NAMES, Family
from jaxllm.models.norm_plan import NormPlan


def read_olmo(file: ConfigFile, architecture: str) -> ModelConfig:
    """OLMo's configuration."""
    file = file.reading(max_position_embeddings=2048, eos_token_id=50279)
    options, norm = read_llama(file), NormPlan(kind="layer", eps=1e-5, weight=False)
    bias, clip = file.boolean("attention_bias", False), file.optional_number("clip_qkv")
    layers = with_biases(with_norms(options["layers"], attention_norm=norm, mlp_norm=norm), qkv=bias, output=bias)
    options |= {"layers": tuple(layer.attending(clip=clip) for layer in layers), "norm": norm}
    return ModelConfig(architecture=architecture, **options)


def read_olmo2(file: ConfigFile, architecture: str, rope: RopeConfig | None = None) -> ModelConfig:
    """OLMo 2's; OLMo 3 has more than one rotary embedding."""
    file = file.reading(max_position_embeddings=2048, eos_token_id=50279, rms_norm_eps=1e-5)
    options = read_llama(file, rope=rope)
    norm, bias = options["norm"], file.boolean("attention_bias", False)
    behind = {"attention_output_norm": norm, "mlp_output_norm": norm, "attention_norm": None, "mlp_norm": None}
    layers = with_biases(with_norms(options["layers"], **behind), qkv=bias, output=bias)
    options["layers"] = tuple(layer.attending(norm=norm, norm_over="all") for layer in layers)
    return ModelConfig(architecture=architecture, **options)


def read_olmo3(file: ConfigFile, architecture: str) -> ModelConfig:
    """OLMo 3's: three of four layers have a window, and scaling of positions is for the others only."""
    file = file.reading(rope_theta=500_000.0, sliding_window=4096, max_position_embeddings=2048)
    ropes = read_ropes(file)
    config = read_olmo2(file, architecture, ropes["full_attention"])
    types = layer_types(file, config.num_layers, every_nth_full(config.num_layers, 4))
    sliding = {"window": file.optional_integer("sliding_window") or 0, "rope": ropes["sliding_attention"]}
    return replace(config, layers=with_types(config.layers, types, full={}, sliding=sliding))


FAMILY = Family(read_olmo)
OLMO2 = Family(read_olmo2, weight_names=SANDWICH_NAMES)
OLMO3 = Family(read_olmo3, weight_names=SANDWICH_NAMES)
