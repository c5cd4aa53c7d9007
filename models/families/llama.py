"""Llama 1 to 3, and the many checkpoints that share its architecture."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Llama's configuration: one switch for all attention biases, one for those of the MLP."""
    file = file.reading(max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)
    bias, mlp_bias = file.boolean("attention_bias", False), file.boolean("mlp_bias", False)
    options = read_llama(file)
    options["layers"] = with_biases(options["layers"], qkv=bias, output=bias, mlp=mlp_bias)
    return ModelConfig(architecture=architecture, **options)


def read_bidirectional(file: ConfigFile, architecture: str) -> ModelConfig:
    """Encoders made of Llama's layers: those of NVIDIA, and EuroBERT (arXiv 2503.05500)."""
    file.ignore("pooling", "temperature", "mask_token_id")
    return read_config(file, architecture).bidirectional()


FAMILY = Family(read_config)
BIDIRECTIONAL = Family(read_bidirectional)
