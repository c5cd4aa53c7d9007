"""Ministral and Ministral 3: Mistral with windows by layer, and queries that grow with positions."""

from typing import Any

from jaxllm.models.attention_plan import QueryScale
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, SLIDING, layer_types, read_llama, with_windows
from jaxllm.models.families.family import Family


def read_ministral(file: ConfigFile, architecture: str) -> ModelConfig:
    """Ministral's configuration: each layer with the window or without, as `layer_types` says."""
    file = file.reading(sliding_window=4096, num_key_value_heads=8, **_IDS, max_position_embeddings=131072)
    options, window = read_llama(file), file.optional_integer("sliding_window") or 0
    types = layer_types(file, len(options["layers"]), [SLIDING if window else FULL] * len(options["layers"]))
    windows = [window if kind == SLIDING else 0 for kind in types]
    options["layers"] = with_windows(options["layers"], windows)
    return ModelConfig(architecture=architecture, **options)


def read_ministral3(file: ConfigFile, architecture: str) -> ModelConfig:
    """Ministral 3's."""
    sizes = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262_144}
    file = file.reading(**sizes, **_IDS, rms_norm_eps=1e-5, rope_parameters=_ROPE)
    rope = file.section("rope_parameters")
    beta = rope.optional_number("llama_4_scaling_beta") if rope else None
    options = read_llama(file)
    if rope and beta:
        scale = QueryScale(beta=beta, length=rope.integer("original_max_position_embeddings"))
        options["layers"] = tuple(layer.attending(query_scale=scale) for layer in options["layers"])
    config = ModelConfig(architecture=architecture, **options)
    return config.with_windows((file.optional_integer("sliding_window") or 0,) * config.num_layers)


_IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}

_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILY = Family(read_ministral)
MINISTRAL3 = Family(read_ministral3)
