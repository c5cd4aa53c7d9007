"""Llama 1 to 3, and the many checkpoints that share its architecture."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig, common_options
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Llama's configuration: one switch for all attention biases, one for those of the MLP."""
    bias = file.boolean("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        **common_options(file, max_positions=2048),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=file.boolean("mlp_bias", False),
        bos_token_id=file.optional_integer("bos_token_id", 1, minimum=0),
        eos_token_ids=file.token_ids("eos_token_id", default=2),
    )


FAMILY = Family(read_config)
