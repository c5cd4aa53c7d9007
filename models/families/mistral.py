"""Mistral: Llama with a sliding window on every layer and no biases."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig, common_options
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mistral's configuration; a missing `sliding_window` means 4096, null means none."""
    options = common_options(file, max_positions=131072, default_kv_heads=8)
    window = file.optional_integer("sliding_window", 4096)
    options["windows"] = (window or 0,) * options["num_layers"]
    return ModelConfig(
        architecture=architecture,
        **options,
        bos_token_id=file.optional_integer("bos_token_id", 1, minimum=0),
        eos_token_ids=file.token_ids("eos_token_id", default=2),
    )


FAMILY = Family(read_config)
