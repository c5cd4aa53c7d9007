"""ERNIE 4.5, dense: Llama with neighbours rotated in pairs, and one switch for all biases."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ERNIE's configuration."""
    defaults = {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 500_000.0}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    file = file.reading(**defaults, **ids, rms_norm_eps=1e-5, tie_word_embeddings=True)
    bias, options = file.boolean("use_bias", False), read_llama(file, interleaved=True)
    options["layers"] = with_biases(options["layers"], qkv=bias, output=bias, mlp=bias)
    return ModelConfig(architecture=architecture, **options)


FAMILY = Family(read_config)
