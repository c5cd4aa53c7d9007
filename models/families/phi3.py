"""Phi-3, 3.5 and 4: Llama with fused projections, and longrope for texts beyond the trained length."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Phi-3's configuration."""
    defaults = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    file = file.reading(**defaults, partial_rotary_factor=1.0, bos_token_id=1, eos_token_id=32000)
    file.expect(full_attn_mod=1, interpolate_factor=1)
    config = ModelConfig(architecture=architecture, **read_llama(file))
    return config.with_windows((file.optional_integer("sliding_window") or 0,) * config.num_layers)


def weight_names(config: ModelConfig) -> Names:
    """Queries, keys and values are one tensor, gates and what they gate another."""
    query, key = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    heads = {"query": query, "key": key, "value": key}
    wide = {"gate": config.intermediate_size, "up": config.intermediate_size}
    attention = fused("model.layers.*.self_attn.qkv_proj", heads)
    mlp = fused("model.layers.*.mlp.gate_up_proj", wide)
    return {
        **LLAMA_NAMES,
        **{f"layers.*.attention.{name}": source for name, source in attention.items()},
        **{f"layers.*.mlp.{name}": source for name, source in mlp.items()},
    }


FAMILY = Family(read_config, weight_names=weight_names)
