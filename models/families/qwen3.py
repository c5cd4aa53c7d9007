"""Qwen 3: query and key heads are normalised, and heads are 128 wide unless the configuration says otherwise."""

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import qwen_windows, read_llama, with_biases
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str, rope: RopeConfig | None = None) -> ModelConfig:
    """Qwen3's configuration; one switch for all attention biases. Its rotary embedding may be given."""
    file = file.reading(max_position_embeddings=32768, num_key_value_heads=32, head_dim=128)
    bias = file.boolean("attention_bias", False)
    options = read_llama(file, rope=rope)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = tuple(layer.attending(norm=layer.attention_norm) for layer in layers)
    config = ModelConfig(architecture=architecture, **options)
    return config.with_windows(qwen_windows(file, config.num_layers))


FAMILY = Family(read_config)
