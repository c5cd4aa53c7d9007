"""GLM-5 next (GLM-5.3-Flash): Kimi's delta attention and, in every fourth layer, attention to groups of latents
that an index chooses, within hyper-connections.

Images are not seen, and layers that predict further tokens not used.
"""

from dataclasses import replace

from jaxllm.models.attention_plan import KeyIndexPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek, deepseek_sparse, kimi_linear
from jaxllm.models.families.common import FULL, text_part
from jaxllm.models.families.expert_groups import sigmoid_router
from jaxllm.models.families.family import TEXT_PARTS, Family, Names, further_layers
from jaxllm.models.families.qwen3_next import LINEAR
from jaxllm.models.mlp_plan import ClampedPlan, ExpertsPlan
from jaxllm.models.plan import HyperConnectionsPlan, LayerPlan
from jaxllm.models.recurrent_plan import ChannelDeltaPlan

INDEXED = "indexed_attention"
_SIZES = {
    "vocab_size": 154_880,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 256,
    "v_head_dim": 256,
    "max_position_embeddings": 1_048_576,
    "rms_norm_eps": 1e-5,
    "n_group": 1,
    "topk_group": 1,
    "linear_num_heads": 64,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model."""
    file = text_part(file).reading(**_SIZES)
    file.expect(qk_rope_head_dim=0, hidden_act="silu", index_kpool_always_select_tail=True)
    file.expect(scoring_func="sigmoid", topk_method="noaux_tc", mlp_bias=False)
    # Nothing is rotated: the size is any even number.
    file.ignore("head_dim", "rope_theta", "rope_parameters", "rope_scaling", "rope_interleave")
    plain = file.but(head_dim=None, qk_rope_head_dim=2, rope_theta=1e4, rope_parameters=None, rope_scaling=None)
    dense = deepseek.dense_layers(file, 3)
    router = sigmoid_router(file, groups=None, scale=2.5)
    config = deepseek.with_latent_experts(plain, architecture, router, dense, interleaved=False)
    plan, norm = config.latent, config.norm
    assert plan is not None
    assert norm is not None
    if plan.query_rank is None:
        raise file.wrong("q_lora_rank", "given: the index takes the latents of queries")
    size = plan.plain_size
    plan = plan.but(rope=None, rope_size=0, norm=norm, scale=size**-0.5, index=_index(file))
    streams = HyperConnectionsPlan(
        count=file.integer("hc_mult", 4),
        eps=file.number("hc_eps", 1e-6),
        norm_eps=norm.eps,
        iterations=file.integer("hc_sinkhorn_iters", 20),
        joins_by_weight=False,
    )
    clamped, delta = ClampedPlan(alpha=1.0, limit=file.positive("swiglu_limit", 10.0), offset=0.0), _delta(file)
    layers = []
    shared = _shared_layers(file, kinds := _kinds(file, config.num_layers))
    for layer, kind, is_shared in zip(config.layers, kinds, shared, strict=True):
        own = replace(layer, attention=plan.but(shares_choice=is_shared), streams=streams)
        layers.append(_clamped(own if kind == FULL else replace(own, recurrence=delta), clamped))
    return replace(config, layers=tuple(layers))


def _index(file: ConfigFile) -> KeyIndexPlan:
    pool, top = file.integer("index_kpool", 16), file.integer("index_topk", 2048)
    if top % pool:
        raise file.wrong("index_topk", f"a multiple of 'index_kpool' = {pool}")
    return KeyIndexPlan(
        heads=file.integer("index_n_heads", 32), size=file.integer("index_head_dim", 128), top=top, pool=pool
    )


def _delta(file: ConfigFile) -> ChannelDeltaPlan:
    """The recurrence. A section of published files says what transformers has as options."""
    plan, own = kimi_linear.read_delta(file), file.section("linear_attn_config")
    lowest = file.number("linear_lower_bound") if file.values.get("linear_lower_bound", -5.0) is not None else None
    file.ignore("linear_lower_bound")
    if own is not None:
        lowest = own.number("gate_lower_bound") if own.has("gate_lower_bound") else lowest
        lowest = -5.0 if lowest is None and own.boolean("safe_gate", True) else lowest
    return replace(plan, lowest_decay=lowest)


def _kinds(file: ConfigFile, count: int) -> list[str]:
    """For each layer, `FULL` or `LINEAR`."""
    kinds = [FULL if layer % 4 == 3 else LINEAR for layer in range(count)]
    if file.has("layer_types"):
        kinds = [FULL if kind == INDEXED else kind for kind in file.texts("layer_types")]
    if len(kinds) != count or set(kinds) - {FULL, LINEAR}:
        raise file.wrong("layer_types", f"a list of {count} of {INDEXED!r} and {LINEAR!r}")
    return kinds


def _shared_layers(file: ConfigFile, kinds: list[str]) -> list[bool]:
    """For each layer whether it takes the choice of the one before it, which must have an index of its own."""
    shared = deepseek_sparse.shared_layers(file, len(kinds))
    for layer, kind in enumerate(kinds):
        if kind == FULL and shared[layer] and (kinds[layer - 1] != FULL or shared[layer - 1]):
            raise file.wrong("indexer_types", "'full' for a layer unless it follows one with an index of its own")
    return [is_shared and kind == FULL for is_shared, kind in zip(shared, kinds, strict=True)]


def _clamped(layer: LayerPlan, clamped: ClampedPlan) -> LayerPlan:
    """The layer with clamped gates, of experts and of what all tokens have."""
    mlp = layer.mlp
    if isinstance(mlp, ExpertsPlan) and mlp.shared is not None:
        mlp = replace(mlp, shared=replace(mlp.shared, clamped=clamped))
    return replace(layer, mlp=replace(mlp, clamped=clamped))


def weight_names(config: ModelConfig) -> Names:
    """Names of published checkpoints."""
    index, mixer = "layers.*.attention.indexer", "model.layers.*.self_attn"
    pools = f"{mixer}.indexer.index_kpool_compress"
    mixes = {part: part for part in ("base", "scale")} | {"weight": "fn"}
    return {
        **deepseek_sparse.weight_names(config),
        **kimi_linear.delta_names(),
        "layers.*.recurrence.decays": Source(mixer, endings={"a_log": ".A_log"}),
        index: Source(f"{pools}_ape", endings={"place_bias": ""}),
        f"{index}.gate": Source(f"{pools}_gate", endings={"weight": ""}),
        "layers.*.attention_streams.mixes": Source("model.layers.*.hc_attn_", endings=mixes),
        "layers.*.mlp_streams.mixes": Source("model.layers.*.hc_ffn_", endings=mixes),
    }


def other_parts(config: ModelConfig) -> tuple[str, ...]:
    """What predicts further tokens, or sees."""
    return (*further_layers(config), "model.visual.", "visual.")


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed=TEXT_PARTS,
    synonyms={"forget_gate": ""},
    other_parts=other_parts,
    # Groups of one token have none.
    ignored_tensors=(".index_kpool_compress_ape", ".index_kpool_compress_gate"),
)
