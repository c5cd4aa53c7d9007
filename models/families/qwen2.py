"""Qwen 1.5, 2 and 2.5: Llama with biases on query, key and value, and a window on the upper layers if asked for."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig, common_options, layer_windows
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen2's configuration; the biases are not optional."""
    options = common_options(file, max_positions=32768, default_kv_heads=32)
    options["windows"] = layer_windows(file, options["num_layers"])
    return ModelConfig(
        architecture=architecture,
        **options,
        qkv_bias=True,
        bos_token_id=file.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=file.token_ids("eos_token_id"),
    )


FAMILY = Family(read_config)
