"""Youtu-LLM: latent attention, and dense MLPs in every layer."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family
from jaxllm.models.families.latent import latent_names, read_latent_llama

_DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 131_072,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
    "tie_word_embeddings": True,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Youtu's configuration."""
    file = file.reading(**_DEFAULTS)
    file.ignore("embedding_initializer_range")
    # Files of the authors' own code say that there is one "expert" in each layer, the MLP.
    file.expect(mlp_bias=False)
    options = read_latent_llama(file, interleaved=file.boolean("rope_interleave", True))
    return ModelConfig(architecture=architecture, **options)


FAMILY = Family(read_config, weight_names=latent_names)
