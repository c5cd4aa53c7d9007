"""Multi-head latent attention as configurations and checkpoints of DeepSeek's models describe it."""

import math
from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import AnyAttentionPlan, LatentAttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_layers, read_sizes
from jaxllm.models.families.family import LLAMA_NAMES, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.norm_plan import NormPlan


def read_latent_llama(file: ConfigFile, *, interleaved: bool) -> dict[str, Any]:
    """`ModelConfig` arguments of Llama with latent attention in place of its own.

    `interleaved` says whether a rotated element pairs with its neighbour in checkpoints. Raises `ModelError`.
    """
    file = file.reading({"head_dim": "qk_rope_head_dim"})
    file.ignore("qk_head_dim")
    heads = file.integer("num_attention_heads")
    if (file.optional_integer("num_key_value_heads") or heads) != heads:
        raise file.wrong("num_key_value_heads", f"{heads}, as many as 'num_attention_heads'")
    sizes, rope = read_sizes(file), read_rope(file, interleaved=interleaved)
    attention = LatentAttentionPlan(
        rank=file.integer("kv_lora_rank"),
        plain_size=file.integer("qk_nope_head_dim"),
        rope_size=sizes["head_size"],
        value_size=file.integer("v_head_dim", sizes["hidden_size"] // sizes["num_heads"]),
        query_rank=file.optional_integer("q_lora_rank"),
        rope=rope,
        # Norms of latents have this eps, whatever that of others is.
        norm=NormPlan(eps=1e-6),
        bias=file.boolean("attention_bias", False),
    )
    attention = replace(attention, scale=attention.query_size**-0.5 * _temper(rope) ** 2)
    layers = tuple(replace(layer, attention=attention) for layer in read_layers(file, rope))
    return {**sizes, "num_kv_heads": 1, "layers": layers, "norm": layers[0].attention_norm}


def _temper(rope: RopeConfig) -> float:
    """The factor of yarn on queries and keys, in place of their rotated part alone."""
    if not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0


def latent_names(config: ModelConfig) -> Names:
    """Names of a model with latent attention, and Llama's for what is not that. Sizes may differ between layers."""
    plan = config.latent
    assert plan is not None
    block = "model.layers.*.self_attn"
    takes = [_halves(config, layer.attention) for layer in config.layers]
    up = {
        module: Source(f"{block}.kv_b_proj", takes=tuple(take[index] for take in takes))
        for index, module in enumerate(("key_up", "value_up"))
    }
    inside: Names = {
        "query_down": f"{block}.q_a_proj",
        "query_norm": f"{block}.q_a_layernorm",
        "query": f"{block}.{'q_b_proj' if plan.query_rank else 'q_proj'}",
        "latent_down": f"{block}.kv_a_proj_with_mqa",
        "latent_norm": f"{block}.kv_a_layernorm",
        "rope_norm": f"{block}.k_rope_only_layernorm",
        "output": f"{block}.o_proj",
        **up,
    }
    return {**LLAMA_NAMES, **{f"layers.*.attention.{module}": name for module, name in inside.items()}}


def _halves(config: ModelConfig, plan: AnyAttentionPlan) -> tuple[Fused, Fused]:
    """What makes keys, and values, of latents: of every head some rows of one tensor."""
    assert isinstance(plan, LatentAttentionPlan)
    sizes = plan.plain_size, plan.value_size
    return Fused(sizes, 0, config.heads_of(plan)), Fused(sizes, 1, config.heads_of(plan))
