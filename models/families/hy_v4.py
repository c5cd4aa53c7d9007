"""Hy4: DeepSeek V3.2's index, whose choice layers share, within hyper-connections; attention with sinks and gates."""

from dataclasses import replace

from jaxllm.models.attention_plan import LatentAttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek_sparse
from jaxllm.models.families.family import Family, Names
from jaxllm.models.mlp_plan import ClampedPlan, ExpertsPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import HyperConnectionsPlan, LayerPlan

_SIZES = {
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Hy4's configuration. Layers that predict further tokens are not used."""
    count = file.integer("num_hidden_layers", 34)
    types = ["shared" if layer % 4 != 1 and layer else "full" for layer in range(count)]
    file = file.reading(**_SIZES, num_hidden_layers=count, bos_token_id=120_000, eos_token_id=120_025, n_group=1)
    file = file.reading(topk_group=1, index_n_heads=16, first_k_dense_replace=1, routed_scaling_factor=2.827)
    file = file.reading(indexer_types=types)
    # The first is where training begins, and the size of rotated parts has a name of its own.
    file.ignore("learnable_sink_init", "head_dim")
    config = deepseek_sparse.with_index(file, architecture, interleaved=False, attention_interleaved=False)
    norm = config.norm
    assert norm is not None
    streams = HyperConnectionsPlan(
        count=file.integer("hc_mult", 4),
        eps=file.number("hc_eps", 1e-6),
        norm_eps=norm.eps,
        iterations=0,
        magnitude=file.number("hc_magnitude", 2.0),
        output_eps=file.number("hc_eps", 1e-6),
    )
    clamped = ClampedPlan(alpha=1.0, limit=file.positive("swiglu_limit", 10.0), offset=0.0)
    shared = deepseek_sparse.shared_layers(file, count)
    layers = zip(config.layers, shared, strict=True)
    made = (_layer(layer, norm, streams, clamped, is_shared=is_shared) for layer, is_shared in layers)
    return replace(config, layers=tuple(made))


def _layer(
    layer: LayerPlan, norm: NormPlan, streams: HyperConnectionsPlan, clamped: ClampedPlan, *, is_shared: bool
) -> LayerPlan:
    plan = layer.attention
    assert isinstance(plan, LatentAttentionPlan)
    assert plan.index is not None
    index = replace(plan.index, rotates_last=True, norm=replace(plan.index.norm, eps=norm.eps))
    attention = plan.but(index=index, shares_choice=is_shared, sinks=True, output_gate="elements")
    # Experts are clamped, and what all tokens have is not.
    mlp = replace(layer.mlp, clamped=clamped) if isinstance(layer.mlp, ExpertsPlan) else layer.mlp
    return replace(layer, attention=attention, mlp=mlp, streams=streams)


def weight_names(config: ModelConfig) -> Names:
    """Names of released checkpoints, where experts are one tensor. Those that transformers writes differ."""
    block, mlp = "model.layers.*.self_attn", "model.layers.*.mlp"
    names = {
        **deepseek_sparse.weight_names(config),
        "layers.*.attention": Source(block, endings={"sinks": ".learnable_sink_param"}),
        "layers.*.attention.gate": f"{block}.linear_gate",
        "layers.*.attention_streams.mixes": _mixes("model.layers.*.hc_attn_layer.hc_pre.hc_"),
        "layers.*.mlp_streams.mixes": _mixes("model.layers.*.hc_mlp_layer.hc_pre.hc_"),
        "streams.mixes": _mixes("model.hc_head.hc_head_"),
    }
    plans = [layer.mlp for layer in config.layers if isinstance(layer.mlp, ExpertsPlan)]
    for plan in plans[:1]:
        for index, name in enumerate(("expert_gate", "expert_up")):
            part = OfExpert(plan.count, Fused((plan.size, plan.size), index))
            names[f"layers.*.mlp.{name}"] = Source(f"{mlp}.experts.gate_up_proj", part, {"weight": ""})
        names["layers.*.mlp.expert_down"] = Source(f"{mlp}.experts.down_proj", OfExpert(plan.count), {"weight": ""})
    return names


def _mixes(name: str) -> Source:
    return Source(name, endings={"weight": "fn", "base": "base", "scale": "scale"})


FAMILY = Family(read_config, weight_names=weight_names, other_parts=("model.mtp_layers.",))
