"""Kinds of attention that most models do not have."""

import jax.numpy as jnp

from jaxllm.models.attention_plan import AnyAttentionPlan, CompressedAttentionPlan, LatentAttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.block_index import IndexedAttention
from jaxllm.models.layers.compressed_attention import CompressedAttention
from jaxllm.models.layers.head_experts import ExpertAttention
from jaxllm.models.layers.latent_attention import LatentAttention
from jaxllm.models.options import ForwardOptions


def make_uncommon_attention(
    config: ModelConfig, plan: AnyAttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype
) -> ExpertAttention | IndexedAttention | LatentAttention | CompressedAttention:
    """Latent attention, that to entries or to keys that an index chooses, or that of experts in place of heads."""
    if isinstance(plan, LatentAttentionPlan):
        return LatentAttention(config, plan, options, dtype=dtype)
    if isinstance(plan, CompressedAttentionPlan):
        return CompressedAttention(config, plan, options, dtype=dtype)
    if plan.index is not None:
        return IndexedAttention(config, plan, options, dtype=dtype)
    return ExpertAttention(config, plan, options, dtype=dtype)
