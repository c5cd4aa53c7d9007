"""Mistral: Llama with a sliding window on every layer and no biases."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mistral's configuration; a missing `sliding_window` means 4096, null means none."""
    file = file.reading(max_position_embeddings=131072, num_key_value_heads=8, bos_token_id=1, eos_token_id=2)
    config = ModelConfig(architecture=architecture, **read_llama(file))
    window = file.optional_integer("sliding_window", 4096)
    return config.with_windows((window or 0,) * config.num_layers)


FAMILY = Family(read_config)
