"""Qwen 1.5, 2 and 2.5: Llama with biases on query, key and value, and a window on the upper layers if asked for."""

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import qwen_windows, read_llama, with_biases
from jaxllm.models.families.family import Family
from jaxllm.models.families.uses import reward_model


def read_config(file: ConfigFile, architecture: str, rope: RopeConfig | None = None) -> ModelConfig:
    """Qwen2's configuration; the biases are not optional. Its rotary embedding may be given."""
    file = file.reading(max_position_embeddings=32768, num_key_value_heads=32)
    options = read_llama(file, rope=rope)
    options["layers"] = with_biases(options["layers"], qkv=True, output=False)
    config = ModelConfig(architecture=architecture, **options)
    return config.with_windows(qwen_windows(file, config.num_layers))


FAMILY = Family(read_config)

REWARD = reward_model(FAMILY, labels=1)
PROCESS_REWARD = reward_model(FAMILY, labels=2, step_token_id=151_651)
"""Scores of steps: the token that ends one is Qwen 2.5 Math's `<extra_0>`."""
