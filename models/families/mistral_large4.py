"""Mistral Large 4: DeepSeek V3.2's index over latents, queries that grow, and layers without positions.

Checkpoints have Mistral's own names of tensors. Images are not seen, and layers that predict further tokens not used.
"""

from dataclasses import replace

from jaxllm.models.attention_plan import KeyIndexPlan, LatentAttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek, deepseek_sparse
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import OTHER_PARTS, Family, Names
from jaxllm.models.mlp_plan import RouterPlan
from jaxllm.models.norm_plan import NormPlan

_SIZES = {
    "vocab_size": 204_800,
    "hidden_size": 6144,
    "intermediate_size": 24_576,
    "moe_intermediate_size": 6144,
    "num_hidden_layers": 72,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 1_048_576,
    "rms_norm_eps": 1e-5,
    "n_group": 1,
    "topk_group": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2048.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model."""
    names = {"n_routed_experts": "num_experts"}
    file = text_part(file).reading(names, **_SIZES, first_k_dense_replace=1, rope_parameters=_ROPE)
    file.expect(q_lora_rank=None)
    # It is what rotated parts are called elsewhere, and weights of experts always have the sum 1.
    file.ignore("head_dim", "norm_topk_prob", "rope_interleave", "indexer_rope_interleave")
    deepseek_sparse.expect_all(file, "layer_types", "indexed_attention")
    router = RouterPlan(
        groups=file.integer("n_group"),
        top_groups=file.integer("topk_group"),
        group_score="best_two",
        normalised=True,
        epsilon=1e-20,
        scale=file.number("routed_scaling_factor", 1.0),
    )
    dense = deepseek.dense_layers(file, 1)
    config = deepseek.with_latent_experts(file, architecture, router, dense, interleaved=True)
    plan, norm = config.latent, config.norm
    assert plan is not None
    assert plan.rope is not None
    assert norm is not None
    index = KeyIndexPlan(
        heads=file.integer("index_n_heads", 32),
        size=file.integer("index_head_dim", 128),
        top=file.integer("index_topk", 2048),
        interleaved=True,
        input_norm=NormPlan(kind="layer", bias=True),
        grows=True,
    )
    if index.size < plan.rope_size:
        raise file.wrong("index_head_dim", f"at least 'qk_rope_head_dim' = {plan.rope_size}")
    plan = plan.but(norm=norm, index=index, grows=True, rope=replace(plan.rope, learns=True))
    output = replace(config.output, soft_cap=file.positive("final_logit_softcapping", 30.0))
    plans = _plans(file, plan, config.num_layers)
    layers = (replace(layer, attention=own) for layer, own in zip(config.layers, plans, strict=True))
    return replace(config, layers=tuple(layers), output=output)


def _plans(file: ConfigFile, plan: LatentAttentionPlan, count: int) -> list[LatentAttentionPlan]:
    """Attention of each layer, some without positions, some with the latents or the choice of one before them."""
    every = file.integer("no_rope_layer_interval", 4)
    turned = [int((layer + 1) % every != 0) for layer in range(count)]
    if file.has("no_rope_layers"):
        turned = file.integers("no_rope_layers")
    if len(turned) < count or set(turned) - {0, 1}:
        raise file.wrong("no_rope_layers", f"a list of {count} numbers, 1 for a layer with a rotary embedding, else 0")
    shared = deepseek_sparse.shared_layers(file, count)
    sources = file.integers("kv_source_layers") if file.has("kv_source_layers") else list(range(count))
    if len(sources) != count:
        raise file.wrong("kv_source_layers", f"a list of {count} numbers")
    plain = plan.but(rope=None, rope_size=0, plain_size=plan.query_size)
    plans: list[LatentAttentionPlan] = []
    last = {0: -1, 1: -1}
    for layer, source in enumerate(sources):
        own = (plan if turned[layer] else plain).but(shares_choice=shared[layer])
        if source == layer:
            if layer in sources[layer + 1 :]:
                last[turned[layer]] = layer
        elif source == last[turned[layer]] and shared[layer]:
            own = own.but(source=source)
        else:
            # transformers keeps one such layer of either kind; and an index key lies alongside its own latent here.
            raise file.wrong(
                "kv_source_layers",
                "of each layer itself or, if it is 'shared' in 'indexer_types', the last one before it that others "
                "take latents of and that 'no_rope_layers' says the same of",
            )
        plans.append(own)
    return plans


_PARTS = {
    "model.layers.*.self_attn.": "layers.*.attention.",
    "model.layers.*.mlp.experts.": "layers.*.experts.",
    "model.layers.*.mlp.shared_experts.": "layers.*.shared_experts.",
    "model.layers.*.mlp.": "layers.*.feed_forward.",
    "model.layers.*.input_layernorm": "layers.*.attention_norm",
    "model.layers.*.post_attention_layernorm": "layers.*.ffn_norm",
    "model.norm": "norm",
    "model.embed_tokens": "tok_embeddings",
    "lm_head": "output",
}
"""Beginnings of names, the longest first."""
_MODULES = {
    "q_proj": "wq",
    "kv_a_proj_with_mqa": "wkv_a_with_mqa",
    "kv_a_layernorm": "kv_a_norm",
    "kv_b_proj": "wkv_b",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
}


def weight_names(config: ModelConfig) -> Names:
    """Mistral's names of the tensors."""
    index = "layers.*.attention.indexer"
    growth = {"scale": ".s", "bias": ".b"}
    own: Names = {
        "layers.*.mlp.router": "layers.*.gate",
        "layers.*.attention.growth": Source("layers.*.attention.ssmax_scaling", endings=growth),
        f"{index}.growth": Source(f"{index}.ssmax_scaling", endings=growth),
        f"{index}.input_norm": f"{index}.q_input_norm",
        "rotary": "lerope",
    }
    return {**{ours: _named(source_of(name)) for ours, name in deepseek_sparse.weight_names(config).items()}, **own}


def _named(source: Source) -> Source:
    """The source with Mistral's name."""
    name = source.name
    for theirs, ours in _PARTS.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
            break
    before, dot, module = name.rpartition(".")
    return replace(source, name=f"{before}{dot}{_MODULES.get(module, module)}")


TOWER = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm.", "mtp_dspark.")
"""What else is in checkpoints: what sees, and a layer that predicts further tokens."""

FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed={"model.language_model.": "", "lm_head.": "output."},
    synonyms={
        "self_attn": "attention",
        **{f"mlp.{part}": part for part in ("gate", "experts", "shared_experts")},
        "mlp": "feed_forward",
        "embed_tokens": "tok_embeddings",
        **_MODULES,
    },
    # Adapters have transformers' names.
    other_parts=(*TOWER, *OTHER_PARTS),
    prefix="",
)
