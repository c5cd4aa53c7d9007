"""Kinds of attention that most models do not have."""

import jax.numpy as jnp

from jaxllm.models.attention_plan import AttentionPlan, LatentAttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.block_index import IndexedAttention
from jaxllm.models.layers.head_experts import ExpertAttention
from jaxllm.models.layers.latent_attention import LatentAttention
from jaxllm.models.options import ForwardOptions


def make_uncommon_attention(
    config: ModelConfig, plan: AttentionPlan | LatentAttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype
) -> ExpertAttention | IndexedAttention | LatentAttention:
    """Latent attention, that of experts in place of heads, or that to keys which an index chooses."""
    if isinstance(plan, LatentAttentionPlan):
        return LatentAttention(config, plan, options, dtype=dtype)
    if plan.index is not None:
        return IndexedAttention(config, plan, options, dtype=dtype)
    return ExpertAttention(config, plan, options, dtype=dtype)
