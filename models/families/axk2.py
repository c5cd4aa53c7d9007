"""A.X-K2 (SK Telecom): DeepSeek V3.2 with gated norms, and with gates on what attention gives."""

from dataclasses import replace

from jaxllm.models.attention_plan import LatentAttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek_sparse
from jaxllm.models.families.family import Family, Names
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.plan import LayerPlan

_SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "kv_lora_rank": 128,
    "q_lora_rank": 384,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """A.X-K2's configuration. The larger model has groups of experts."""
    file = file.reading(**_SIZES, max_position_embeddings=131_072, bos_token_id=163_691, eos_token_id=163_691)
    file = file.reading(index_n_heads=16, first_k_dense_replace=1)
    file.ignore("head_dim")
    groups = {key: file.optional_integer(key, 1) or 1 for key in ("n_group", "topk_group")}
    config = deepseek_sparse.with_index(file.but(**groups), architecture, interleaved=False)
    rank = file.integer("gated_norm_rank", 16)
    return replace(config, layers=tuple(_gated(layer, rank) for layer in config.layers))


def _gated(layer: LayerPlan, rank: int) -> LayerPlan:
    """A layer whose first norm has a gate, and the second where experts follow. Dense layers have none there."""
    norm, mlp = layer.attention_norm, layer.mlp
    assert norm is not None
    gated = replace(norm, gate_rank=rank)
    layer = replace(layer.attending(output_gate="elements", takes_both=True), attention_norm=gated)
    if not isinstance(mlp, ExpertsPlan):
        return layer
    # As in transformers, which has a zero for experts in other groups.
    return replace(layer, mlp_norm=gated, mlp=replace(mlp, router=replace(mlp.router, outside=0.0)))


def weight_names(config: ModelConfig) -> Names:
    """Queries and gates are one tensor, and gates of norms are in these."""
    plan, attention = config.latent, "layers.*.attention"
    assert isinstance(plan, LatentAttentionPlan)
    up = {"query": plan.query_size, "gate": plan.value_size}
    names = {
        **deepseek_sparse.weight_names(config),
        **{
            f"{attention}.{module}": source
            for module, source in fused("model.layers.*.self_attn.q_b_proj", up, config.num_heads).items()
        },
    }
    for norm, theirs in (("attention_norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm")):
        parts = {"inner": "norm", "gate_down": "W_down", "gate_up": "W_up"}
        names |= {f"layers.*.{norm}.{ours}": f"model.layers.*.{theirs}.{part}" for ours, part in parts.items()}
    return names


FAMILY = Family(read_config, weight_names=weight_names)
