"""Qwen 3: query and key heads are normalised, and heads are 128 wide unless the configuration says otherwise."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig, common_options, layer_windows
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen3's configuration; one switch for all attention biases."""
    options = common_options(file, max_positions=32768, default_kv_heads=32, default_head_size=128)
    options["windows"] = layer_windows(file, options["num_layers"])
    bias = file.boolean("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        **options,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        bos_token_id=file.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=file.token_ids("eos_token_id"),
    )


FAMILY = Family(read_config)
