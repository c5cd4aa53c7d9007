"""DeepSeek V4: hyper-connections, attention to a window and to compressed entries, experts by a table at first.

Names are those of released checkpoints. Layers that predict further tokens are not used.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import CompressedAttentionPlan, CompressionPlan, EntryIndexPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import ignore_training, read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.mlp_plan import ClampedPlan, ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import HyperConnectionsPlan, LayerPlan

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_BY_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}
_KINDS = {"sqrtsoftplus": "root_softplus", "softmax": "softmax", "sigmoid": "sigmoid"}
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 129_280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "max_position_embeddings": 1_048_576,
    "compress_rope_theta": 160_000.0,
    "num_hash_layers": 3,
    "sliding_window": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """DeepSeek V4's configuration, as transformers writes it or as released files have it."""
    file = file.reading({"intermediate_size": "moe_intermediate_size"}, **_DEFAULTS)
    file.expect(norm_topk_prob=True, attention_bias=False, mlp_bias=False, n_shared_experts=1, topk_method="noaux_tc")
    # Of layers that predict further tokens, and of drafters in the same file.
    file.ignore("num_nextn_predict_layers", "dspark_*")
    if file.has("expert_dtype") and file.text("expert_dtype") not in ("bf16", "fp8"):
        raise file.wrong("expert_dtype", "'bf16' or 'fp8': experts in 4 bits are not supported")
    file.expect(num_local_experts=file.integer("n_routed_experts", 256))
    sizes, count = read_sizes(file), file.integer("num_hidden_layers")
    norm = NormPlan(eps=file.number("rms_norm_eps", 1e-6))
    streams = HyperConnectionsPlan(
        count=file.integer("hc_mult", 4),
        eps=file.number("hc_eps", 1e-6),
        norm_eps=norm.eps,
        iterations=file.integer("hc_sinkhorn_iters", 20),
    )
    kinds, hashed = _layer_types(file, count), _hashed(file, count)
    attention, experts = _attention(file, norm), [_experts(file, by_token=by_token) for by_token in (False, True)]
    layers = tuple(
        LayerPlan(attention=attention[kind], mlp=experts[by_token], attention_norm=norm, mlp_norm=norm, streams=streams)
        for kind, by_token in zip(kinds, hashed, strict=True)
    )
    # Whatever the file says, as in transformers.
    return ModelConfig(architecture=architecture, layers=layers, norm=norm, **sizes | {"num_kv_heads": 1})


def _layer_types(file: ConfigFile, count: int) -> Sequence[str]:
    if file.has("layer_types"):
        file.ignore("compress_ratios")
        kinds = file.texts("layer_types")
    elif file.has("compress_ratios"):
        kinds = [_BY_RATIO.get(ratio, str(ratio)) for ratio in file.integers("compress_ratios")][:count]
    else:
        kinds = [SPARSE if layer > 1 and layer % 2 else HEAVY for layer in range(count)]
    if len(kinds) != count or set(kinds) - {SLIDING, SPARSE, HEAVY}:
        raise file.wrong("layer_types", f"{count} of {SLIDING!r}, {SPARSE!r} and {HEAVY!r}")
    return kinds


def _hashed(file: ConfigFile, count: int) -> Sequence[bool]:
    """For each layer, whether a table has the experts of tokens."""
    if not file.has("mlp_layer_types"):
        return [layer < file.integer("num_hash_layers", minimum=0) for layer in range(count)]
    file.ignore("num_hash_layers")
    kinds = file.texts("mlp_layer_types")
    if len(kinds) != count or set(kinds) - {"hash_moe", "moe"}:
        raise file.wrong("mlp_layer_types", f"{count} of 'hash_moe' and 'moe'")
    return [kind == "hash_moe" for kind in kinds]


def _ropes(file: ConfigFile, size: int) -> tuple[RopeConfig, RopeConfig]:
    """Those of layers with a window alone, and of others."""
    given = file.section("rope_parameters") or file.section("rope_scaling") or ConfigFile({}, file.source)
    own = file.reading({"head_dim": "qk_rope_head_dim"}).but(head_dim=size, partial_rotary_factor=None)
    main, compressed = given.section("main"), given.section("compress")
    if main is None or compressed is None:
        plain = ConfigFile({"rope_theta": file.number("rope_theta", 10_000.0)}, given.source)
        main, compressed = plain, given.but(rope_theta=file.number("compress_rope_theta"))
        if compressed.text("rope_type", compressed.text("type", "default")) == "yarn":
            compressed = compressed.but(attention_factor=compressed.values.get("attention_factor", 1.0))
    file.ignore("rope_theta", "compress_rope_theta", "rope_parameters", "rope_scaling")
    for section in (main, compressed):
        section.ignore("partial_rotary_factor")
    sections = (section.but(partial_rotary_factor=None) for section in (main, compressed))
    ropes = (read_rope(own, section, interleaved=True) for section in sections)
    first, second = (replace(rope, head_size=size) for rope in ropes)
    return first, second


def _attention(file: ConfigFile, norm: NormPlan) -> dict[str, CompressedAttentionPlan]:
    """The plan of each kind of layer."""
    size, window = file.integer("head_dim"), file.integer("sliding_window")
    part = file.number("partial_rotary_factor", 64 / 512)
    rope_size = file.integer("qk_rope_head_dim", int(size * part))
    index_size = file.integer("index_head_dim", 128)
    if rope_size < 2 or rope_size % 2 or rope_size > min(size, index_size):
        raise file.wrong(
            "qk_rope_head_dim", f"even, and at most 'head_dim' = {size} and 'index_head_dim' = {index_size}"
        )
    groups = file.integer("o_groups", 8)
    if file.integer("num_attention_heads") % groups:
        raise file.wrong("o_groups", f"a divisor of 'num_attention_heads' = {file.integer('num_attention_heads')}")
    rates = file.section("compress_rates") or ConfigFile({}, file.source)
    sparse = rates.integer(SPARSE, file.integer("compress_rate_csa", 4))
    heavy = rates.integer(HEAVY, file.integer("compress_rate_hca", 128))
    if max(2 * sparse, heavy) > window:
        rates_given = f"twice {SPARSE!r} = {sparse}, and {HEAVY!r} = {heavy}"
        raise file.wrong("sliding_window", f"at least {max(2 * sparse, heavy)} ({rates_given}): an entry is made of it")
    main, compressed = _ropes(file, rope_size)
    plan = CompressedAttentionPlan(
        size=size,
        rope_size=rope_size,
        query_rank=file.integer("q_lora_rank", 1024),
        groups=groups,
        group_rank=file.integer("o_lora_rank", 1024),
        window=window,
        rope=main,
        norm=norm,
    )
    index = EntryIndexPlan(
        heads=file.integer("index_n_heads", 64),
        size=index_size,
        top=file.integer("index_topk", 512),
    )
    return {
        SLIDING: plan,
        SPARSE: plan.but(rope=compressed, compression=CompressionPlan(rate=sparse, overlaps=True, index=index)),
        HEAVY: plan.but(rope=compressed, compression=CompressionPlan(rate=heavy)),
    }


def _experts(file: ConfigFile, *, by_token: bool) -> ExpertsPlan:
    file.expect(hidden_act="silu")
    scoring, size = file.text("scoring_func", "sqrtsoftplus"), file.integer("moe_intermediate_size")
    clamped = ClampedPlan(alpha=1.0, limit=file.positive("swiglu_limit", 10.0), offset=0.0)
    if scoring not in _KINDS:
        raise file.wrong("scoring_func", " or ".join(map(repr, _KINDS)))
    ignore_training(file)
    count, per_token = file.integer("n_routed_experts", 256), file.integer("num_experts_per_tok", 6)
    if per_token > count:
        raise file.wrong("num_experts_per_tok", f"at most 'n_routed_experts' = {count}")
    return ExpertsPlan(
        count=count,
        per_token=per_token,
        size=size,
        clamped=clamped,
        router=RouterPlan(
            kind=_KINDS[scoring],  # type: ignore[arg-type]
            correction=not by_token,
            by_token=by_token,
            normalised=True,
            epsilon=1e-20,
            scale=file.number("routed_scaling_factor", 1.5),
        ),
        shared=MLPPlan(size=size, clamped=clamped),
    )


def _streams(name: str) -> Source:
    """The three tensors of a product about streams."""
    return Source(name, endings={part: f"_{theirs}" for part, theirs in _MIXES.items()})


_GATED = {"gate": "w1", "up": "w3", "down": "w2"}
_MIXES = {"weight": "fn", "base": "base", "scale": "scale"}
_ATTENTION, _EXPERTS = "layers.*.attn", "layers.*.ffn"
_COMPRESSOR, _INDEX = f"{_ATTENTION}.compressor", f"{_ATTENTION}.indexer"
NAMES: Names = {
    "embedding": "embed",
    "norm": "norm",
    "head": "head",
    "streams.mixes": _streams("hc_head"),
    "layers.*.attention_streams.mixes": _streams("layers.*.hc_attn"),
    "layers.*.mlp_streams.mixes": _streams("layers.*.hc_ffn"),
    "layers.*.attention_norm": "layers.*.attn_norm",
    "layers.*.mlp_norm": "layers.*.ffn_norm",
    "layers.*.attention": Source(_ATTENTION, endings={"sinks": ".attn_sink"}),
    "layers.*.attention.query_down": f"{_ATTENTION}.wq_a",
    "layers.*.attention.query_norm": f"{_ATTENTION}.q_norm",
    "layers.*.attention.query": f"{_ATTENTION}.wq_b",
    "layers.*.attention.key": f"{_ATTENTION}.wkv",
    "layers.*.attention.key_norm": f"{_ATTENTION}.kv_norm",
    "layers.*.attention.output_groups": f"{_ATTENTION}.wo_a",
    "layers.*.attention.output": f"{_ATTENTION}.wo_b",
    "layers.*.attention.entry_value": f"{_COMPRESSOR}.wkv",
    "layers.*.attention.entry_weight": f"{_COMPRESSOR}.wgate",
    "layers.*.attention.compressor.entries": Source(_COMPRESSOR, endings={"bias": ".ape", "norm": ".norm.weight"}),
    "layers.*.attention.index_value": f"{_INDEX}.compressor.wkv",
    "layers.*.attention.index_weight": f"{_INDEX}.compressor.wgate",
    "layers.*.attention.compressor.keys": Source(
        f"{_INDEX}.compressor", endings={"bias": ".ape", "norm": ".norm.weight"}
    ),
    "layers.*.attention.compressor.index_query": f"{_INDEX}.wq_b",
    "layers.*.attention.compressor.index_weights": f"{_INDEX}.weights_proj",
    "layers.*.mlp.router": Source(
        f"{_EXPERTS}.gate", endings={"weight": ".weight", "correction": ".bias", "table": ".tid2eid"}
    ),
    **{f"layers.*.mlp.expert_{ours}": f"{_EXPERTS}.experts.{{expert}}.{theirs}" for ours, theirs in _GATED.items()},
    **{f"layers.*.mlp.shared.{ours}": f"{_EXPERTS}.shared_experts.{theirs}" for ours, theirs in _GATED.items()},
}

MOST_LAYERS = 256
"""Layers whose norms of keys transformers may have written under another name."""

RENAMED = {
    "lm_head.": "head.",
    "model.embed_tokens.": "embed.",
    "model.hc_head.hc_": "hc_head_",
    "model.layers.": "layers.",
    "model.norm.": "norm.",
    **{f"model.layers.{layer}.attn.norm.": f"layers.{layer}.attn.kv_norm." for layer in range(MOST_LAYERS)},
}
"""What transformers writes, which turns most names back into those of released checkpoints."""

SYNONYMS = {
    "model.layers": "layers",
    "self_attn": "attn",
    "mlp": "ffn",
    **{f"shared_experts.{theirs}_proj": f"shared_experts.{ours}" for theirs, ours in _GATED.items()},
    "compressor.indexer.q_b_proj": "indexer.wq_b",
    "compressor.indexer.scorer.weights_proj": "indexer.weights_proj",
    "compressor.indexer": "indexer.compressor",
    "q_a_proj": "wq_a",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "gate_proj": "wgate",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
}

FAMILY = Family(read_config, weight_names=NAMES, renamed=RENAMED, synonyms=SYNONYMS, other_parts=("mtp.",), prefix="")
