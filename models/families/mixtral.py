"""Mixtral: Mistral with experts in every layer."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, expert_names
from jaxllm.models.mlp_plan import RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mixtral's configuration; a missing `sliding_window` means none."""
    file = file.reading(
        max_position_embeddings=131072,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        bos_token_id=1,
        eos_token_id=2,
    )
    options = read_llama(file)
    options["layers"] = with_experts(
        file,
        options["layers"],
        count=file.integer("num_local_experts", 8),
        per_token=file.integer("num_experts_per_tok", 2),
        size=options["intermediate_size"],
        router=RouterPlan(normalised=True),
    )
    config = ModelConfig(architecture=architecture, **options)
    return config.with_windows((file.optional_integer("sliding_window") or 0,) * config.num_layers)


FAMILY = Family(read_config, weight_names={**LLAMA_NAMES, **expert_names("block_sparse_moe", "w1", "w3", "w2")})
