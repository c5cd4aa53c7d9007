"""Kinds of attention that most models do not have."""

import jax.numpy as jnp

from jaxllm.models.attention_plan import AttentionPlan, LatentAttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.head_experts import ExpertAttention
from jaxllm.models.layers.latent_attention import LatentAttention
from jaxllm.models.options import ForwardOptions


def make_uncommon_attention(
    config: ModelConfig, plan: AttentionPlan | LatentAttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype
) -> ExpertAttention | LatentAttention:
    """Latent attention, or that of experts in place of heads."""
    if isinstance(plan, LatentAttentionPlan):
        return LatentAttention(config, plan, options, dtype=dtype)
    return ExpertAttention(config, plan, options, dtype=dtype)
