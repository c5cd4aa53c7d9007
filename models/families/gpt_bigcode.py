"""GPT-BigCode (SantaCoder, StarCoder 1): GPT-2 with one KV head, and matrices stored as (out, in)."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt, gpt2
from jaxllm.models.families.family import Names


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """GPT-2's configuration with `multi_query` and another activation; where the softmax computes is no matter."""
    file.ignore("*_softmax_in_fp32", "*_runner*", "max_batch_size", "max_sequence_length", "num_key_value_heads")
    file.ignore("pad_key_length", "pre_allocate_kv_cache")
    multi_query = file.boolean("multi_query", True)
    # The number of KV heads that some files have alongside it means nothing.
    view = file.reading({"num_key_value_heads": "n_head"}, activation_function="gelu_pytorch_tanh")
    config = gpt2.read_config(view, architecture)
    return replace(config, num_kv_heads=1 if multi_query else config.num_heads)


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint: with as many KV heads as query heads, those of one head lie together."""
    layer = "transformer.h.*"
    blocks = 1 if config.num_kv_heads == 1 else config.num_heads
    return {
        **gpt2.NAMES,
        **gpt.fused_attention(f"{layer}.attn.c_attn", config, blocks),
        "layers.*.attention.output": f"{layer}.attn.c_proj",
        "layers.*.mlp.up": f"{layer}.mlp.c_fc",
        "layers.*.mlp.down": f"{layer}.mlp.c_proj",
    }


FAMILY = replace(gpt2.FAMILY, read_config=read_config, weight_names=weight_names)
