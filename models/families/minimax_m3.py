"""MiniMax M3: attention to blocks of keys that an index chooses, clamped gates, experts by sigmoids of scores."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import BlockIndexPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, layer_types, mlp_types, read_llama, text_part, with_experts, with_norms
from jaxllm.models.families.family import LLAMA_NAMES, OTHER_PARTS, TEXT_PARTS, Family, Names, expert_names
from jaxllm.models.mlp_plan import ClampedPlan, ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan

SPARSE = "minimax_m3_sparse"
_DEFAULTS = {"head_dim": 128, "max_position_embeddings": 524_288, "rms_norm_eps": 1e-6, "rope_theta": 5_000_000.0}
_INDEX = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Options of the index, and what published files call them in a section of their own."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """MiniMax M3's configuration. Layers that predict further tokens are not used."""
    file = file.reading(**_DEFAULTS, partial_rotary_factor=1.0, num_key_value_heads=4)
    # As in transformers, `partial_rotary_factor` says how much of a head is rotated, and gates are always clamped.
    file.ignore("rotary_dim", "hidden_act", "*mtp*")
    file.expect(use_qk_norm=True, qk_norm_type="per_head", use_gemma_norm=True, scoring_func="sigmoid")
    file.expect(use_routing_bias=True, n_shared_experts=1)
    options = read_llama(file.but(hidden_act="silu"))
    norm, count = replace(options["norm"], offset=1.0), len(options["layers"])
    clamped = ClampedPlan(alpha=file.number("swiglu_alpha", 1.702), limit=file.number("swiglu_limit", 7.0))
    dense = MLPPlan(clamped=clamped, size=file.integer("dense_intermediate_size", 12_288))
    sparse = file.section("sparse_attention_config")
    types = layer_types(file, count, _by_number(sparse, "sparse_attention_freq", count, FULL, SPARSE), SPARSE)
    index = _read_index(file, sparse, options, norm) if SPARSE in types else None
    layers = [
        replace(layer.attending(norm=norm, index=index if kind == SPARSE else None), mlp=dense)
        for layer, kind in zip(with_norms(options["layers"], attention_norm=norm, mlp_norm=norm), types, strict=True)
    ]
    kinds = _by_number(file, "moe_layer_freq", count, "dense", "sparse") if file.has("moe_layer_freq") else ["sparse"]
    kinds = mlp_types(file, count, dense=0) if file.has("mlp_layer_types") else kinds * (count // len(kinds))
    options["layers"] = with_experts(
        file,
        layers,
        only=[number for number, kind in enumerate(kinds) if kind == "sparse"],
        count=file.integer("num_local_experts", 128),
        per_token=file.integer("num_experts_per_tok", 4),
        size=options["intermediate_size"],
        clamped=clamped,
        router=RouterPlan(
            kind="sigmoid", correction=True, normalised=True, scale=file.number("routed_scaling_factor", 2.0)
        ),
        shared=MLPPlan(clamped=clamped, size=file.integer("shared_intermediate_size", 3072)),
    )
    return ModelConfig(architecture=architecture, **{**options, "norm": norm})


def read_seeing(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model; images are not seen."""
    return read_config(text_part(file), architecture)


def _by_number(file: ConfigFile | None, key: str, count: int, zero: str, other: str) -> list[str]:
    """The kind of each layer by a list of numbers, `zero` where there is none."""
    numbers = [] if file is None else file.integers(key)
    if file is not None and numbers and len(numbers) != count:
        raise file.wrong(key, f"a list of {count} numbers")
    return [other if number else zero for number in numbers] or [zero] * count


def _read_index(
    file: ConfigFile, sparse: ConfigFile | None, options: Mapping[str, Any], norm: NormPlan
) -> BlockIndexPlan:
    """The index, from options of the file or from those of its section, which transformers prefers."""
    if sparse is not None:
        sparse.expect(use_sparse_attention=True, sparse_score_type="max", sparse_init_block=0)
        # There are no values of the index.
        sparse.ignore("sparse_disable_index_value")
        file = file.but(**{ours: sparse.integer(theirs) for ours, theirs in _INDEX.items() if sparse.has(theirs)})
    index = BlockIndexPlan(
        size=file.integer("index_head_dim", 128),
        block=file.integer("index_block_size", 128),
        top=file.integer("index_topk_blocks", 16),
        local=file.integer("index_local_blocks", 1, minimum=0),
        norm=norm,
    )
    if file.integer("index_n_heads", 4) != options["num_kv_heads"]:
        raise file.wrong("index_n_heads", f"'num_key_value_heads' = {options['num_kv_heads']}")
    rope, size = options["layers"][0].attention.rope, options["head_size"]
    least = rope.rotary_size or size
    if not least <= index.size <= size or index.size % 2:
        raise file.wrong("index_head_dim", f"an even number from {least}, what is rotated, to 'head_dim' = {size}")
    if index.local > index.top:
        raise file.wrong("index_local_blocks", f"at most 'index_topk_blocks' = {index.top}")
    return index


BLOCK, ATTENTION = "model.layers.*.block_sparse_moe", "model.layers.*.self_attn"
NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("block_sparse_moe", "w1", "w3", "w2"),
    "layers.*.mlp.router": Source(BLOCK, endings={"weight": ".gate.weight", "correction": ".e_score_correction_bias"}),
    **{f"layers.*.mlp.shared.{part}": f"{BLOCK}.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    "layers.*.attention.indexer.query": f"{ATTENTION}.index_q_proj",
    "layers.*.attention.indexer.key": f"{ATTENTION}.index_k_proj",
    "layers.*.attention.indexer.query_norm": f"{ATTENTION}.index_q_norm",
    "layers.*.attention.indexer.key_norm": f"{ATTENTION}.index_k_norm",
}
"""Names of published checkpoints, which are those of the model that sees."""


def text_names(config: ModelConfig) -> Names:
    """Names of the language model alone, which only transformers writes: as it has them in memory."""
    block = "model.layers.*.mlp"
    names: dict[str, str | Source] = dict(LLAMA_NAMES)
    for plan in dict.fromkeys(layer.mlp for layer in config.layers):
        own = plan.shared if isinstance(plan, ExpertsPlan) else plan
        assert own is not None
        ours, theirs = ("mlp.shared", f"{block}.shared_experts") if isinstance(plan, ExpertsPlan) else ("mlp", block)
        wide = fused(f"{theirs}.gate_up_proj", dict.fromkeys(("gate", "up"), own.size or config.intermediate_size))
        names |= {f"layers.*.{ours}.{part}": source for part, source in wide.items()}
        names[f"layers.*.{ours}.down"] = f"{theirs}.down_proj"
        if isinstance(plan, ExpertsPlan):
            names |= _packed_experts(plan, block)
    indexer = {"query": "q_proj", "key": "k_proj", "query_norm": "q_norm", "key_norm": "k_norm"}
    names |= {f"layers.*.attention.indexer.{ours}": f"{ATTENTION}.indexer.{part}" for ours, part in indexer.items()}
    return names


def _packed_experts(plan: ExpertsPlan, block: str) -> dict[str, str | Source]:
    """Experts that are one tensor, with the rows of gates before those of what they gate."""
    parts = {name: Fused((plan.size, plan.size), index) for index, name in enumerate(("gate", "up"))}
    endings = {"weight": ""}
    return {
        "layers.*.mlp.router": Source(f"{block}.gate", endings={"correction": ".e_score_correction_bias"}),
        **{
            f"layers.*.mlp.expert_{name}": Source(f"{block}.experts.gate_up_proj", OfExpert(plan.count, part), endings)
            for name, part in parts.items()
        },
        "layers.*.mlp.expert_down": Source(f"{block}.experts.down_proj", OfExpert(plan.count), endings),
    }


FAMILY = Family(read_config, weight_names=text_names)
SEEING = Family(read_seeing, weight_names=NAMES, renamed=TEXT_PARTS, other_parts=(*OTHER_PARTS, "patch_merge_mlp."))
