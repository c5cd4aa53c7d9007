"""Qwen4-Exp: Qwen3.5 with experts, whose attention sees groups of keys that an index chooses, in gated streams.

Some layers add embeddings of n-grams. Images are not seen, and layers that predict further tokens not used.
"""

from dataclasses import replace
from math import isqrt
from typing import Literal

from jaxllm.models.attention_plan import AttentionPlan, GroupIndexPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import InOneAxis, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import qwen3_next
from jaxllm.models.families.common import FULL, text_part
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.gram_plan import GramsPlan, WithGramsPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import GatedStreamsPlan, LayerPlan
from jaxllm.models.recurrent_plan import GatedDeltaPlan

INDEXED = "indexed_attention"
_SIZES = {
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    # Other than Qwen3.5.
    "partial_rotary_factor": 1.0,
}
_LARGEST = 2**31 - 1
"""Rows are found by integers of 32 bits."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model."""
    file = text_part(file)
    # Of transformers' cache.
    file.ignore("number_of_conv_states")
    if file.has("layer_types"):
        file = file.but(layer_types=[FULL if kind == INDEXED else kind for kind in file.texts("layer_types")])
    config = qwen3_next.read_plain_qwen3_5_moe(file.reading(**_SIZES), architecture)
    norm = config.norm
    assert norm is not None
    streams = GatedStreamsPlan(
        count=file.integer("hc_count", 4, minimum=2), rank=file.integer("hc_lowrank", 320), norm=norm
    )
    index, grams, gate = _index(file, config, norm), _grams(file, config, streams), _gate(file)
    layers = list[LayerPlan]()
    for number, layer in enumerate(config.layers):
        own = replace(layer, streams=streams, attention_norm=None, mlp_norm=None)
        if isinstance(layer.recurrence, GatedDeltaPlan):
            delta = replace(layer.recurrence, gate_activation=gate)
            added = grams.get(number)
            own = replace(own, recurrence=delta if added is None else WithGramsPlan(block=delta, grams=added))
        else:
            own = own.attending(index=index)
        layers.append(own)
    wrong = next((number for number in grams if config.layers[number].recurrence is None), None)
    if wrong is not None:
        raise file.wrong("ple_layer_ids", f"numbers of 'linear_attention' layers, and layer {wrong + 1} is not one")
    # The mix after the layers has a norm of its own.
    return replace(config, layers=tuple(layers), norm=None)


def _gate(file: ConfigFile) -> Literal["silu", "sigmoid"]:
    """The activation that gates what a recurrence gives: that of the model by default."""
    key = "output_gate_type" if file.values.get("output_gate_type") else "hidden_act"
    given = file.text(key, "silu")
    file.ignore("output_gate_type")
    if given == "silu":
        return "silu"
    if given == "sigmoid":
        return "sigmoid"
    raise file.wrong(key, "'silu' or 'sigmoid'")


def _index(file: ConfigFile, config: ModelConfig, norm: NormPlan) -> GroupIndexPlan:
    file.expect(indexer_kv_heads=1)
    block, budget = file.integer("indexer_compress_ratio"), file.integer("indexer_budget")
    if budget % block:
        raise file.wrong("indexer_budget", f"a multiple of 'indexer_compress_ratio' = {block}")
    size, rope = file.integer("indexer_head_dim"), config.rope
    least = config.head_size if rope is None or rope.rotary_size is None else rope.rotary_size
    if not least <= size <= config.head_size or size % 2:
        raise file.wrong(
            "indexer_head_dim", f"an even number from {least}, what is rotated, to 'head_dim' = {config.head_size}"
        )
    heads = file.integer("indexer_n_heads")
    return GroupIndexPlan(heads=heads, size=size, block=block, top=budget // block, norm=norm)


def _grams(file: ConfigFile, config: ModelConfig, streams: GatedStreamsPlan) -> dict[int, GramsPlan]:
    """The n-grams of the layers that have some, by the layers' numbers."""
    length = file.integer("ngram_size", 3, minimum=2)
    tables = (length - 1) * file.integer("heads_per_ngram", 8)
    base, seed = file.integer("ngram_vocab_size_base", 20_000_000), file.integer("seed", 1234, minimum=0)
    divisor, parts = file.integer("make_ngram_vocab_size_divisible_by", 128), file.integer("split_ngram_parts", 512)
    found, width = file.integer("ple_embed_dim", config.hidden_size), file.integer("ple_conv_kernel_size", 4, minimum=2)
    layers = sorted(set(file.integers("ple_layer_ids"))) if file.values.get("ple_layer_ids") else []
    file.ignore("ple_layer_ids")
    if not layers:
        return {}
    if found % tables:
        raise file.wrong("ple_embed_dim", f"a multiple of {tables}, as many tables as there are")
    if not 0 < layers[0] <= layers[-1] <= config.num_layers:
        raise file.wrong("ple_layer_ids", f"numbers from 1 to {config.num_layers}")
    if not config.eos_token_ids:
        raise file.wrong("eos_token_id", "given: it stands where n-grams begin")
    primes = _primes(base, tables * len(layers))
    plans = {}
    for number, layer in enumerate(layers):
        rows = primes[number * tables : (number + 1) * tables]
        total = -(-sum(rows) // divisor) * divisor
        if total > _LARGEST:
            raise file.wrong("ngram_vocab_size_base", f"smaller: a layer's tables have {total} rows")
        part = -(-total // parts)
        plans[layer - 1] = GramsPlan(
            multipliers=_multipliers(config.vocab_size, length, seed + 10_007 * number),
            rows=rows,
            shards=tuple(min(part, total - start) for start in range(0, total, part)),
            size=found // tables,
            separator=config.eos_token_ids[0],
            width=width,
            count=streams.count,
            hidden=config.hidden_size,
            norm=streams.norm,
        )
    return plans


def _primes(least: int, count: int) -> tuple[int, ...]:
    """The first `count` primes from `least` on."""
    found, number = list[int](), max(least, 2)
    while len(found) < count:
        if all(number % divisor for divisor in range(2, isqrt(number) + 1)):
            found.append(number)
        number += 1
    return tuple(found)


def _multipliers(vocab_size: int, count: int, seed: int) -> tuple[int, ...]:
    """Odd numbers from SplitMix64 (doi:10.1145/2714064.2660195), such that their products with tokens have 63 bits."""
    bound, mask, step = max((2**63 - 1) // vocab_size // 2, 1), 2**64 - 1, 0x9E3779B97F4A7C15
    found = []
    for index in range(count):
        # Its state begins at the seed and has one step more than its numbers.
        value = (seed + step * (index + 2)) & mask
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = ((value ^ (value >> shift)) * factor) & mask
        found.append(2 * ((value ^ (value >> 31)) % bound) + 1)
    return tuple(found)


_MIX = {"norm": "hc_norm", "down": "input_mix_weight_down", "up": "input_mix_weight_up"}
_GRAMS = "model.layers.*.ple"


def _mix(ours: str, theirs: str) -> Names:
    """The parts of a mix of streams, whose norms are one vector in checkpoints."""
    return {
        f"{ours}.{part}": Source(f"{theirs}.{name}", InOneAxis()) if part == "norm" else f"{theirs}.{name}"
        for part, name in _MIX.items()
    }


def weight_names(config: ModelConfig) -> Names:
    """Names of published checkpoints."""
    plain = replace(config, layers=tuple(map(_without_grams, config.layers)))
    indexer, names = "layers.*.attention.indexer", dict(qwen3_next.names_of_qwen3_5(plain))
    theirs = "model.layers.*.self_attn.indexer"
    for layer in config.attention_layers[:1]:
        assert isinstance(layer.attention, AttentionPlan)
        index = layer.attention.index
        assert isinstance(index, GroupIndexPlan)
        both = fused(f"{theirs}.index_qk_proj", {"query": index.heads * index.size, "key": index.size})
        names |= {f"{indexer}.{part}": source for part, source in both.items()}
        names |= {f"{indexer}.{part}_norm": f"{theirs}.{part[0]}_layernorm" for part in ("query", "key")}
    for ours, block in (("attention", "attn"), ("mlp", "mlp")):
        connection = f"model.layers.*.{block}_hyper_connection"
        names |= _mix(f"layers.*.{ours}_streams.mix", connection)
        names[f"layers.*.{ours}_streams.inject"] = f"{connection}.block_inject_weight"
    names |= _mix("streams.mix", "model.hyper_connection_mixer")
    grams = [plan.grams for plan in config.recurrences if isinstance(plan, WithGramsPlan)]
    norms = {"key_norm": "norm_key", "stream_norm": "norm_query", "value_norm": "norm_conv"}
    names |= {f"layers.*.grams.{ours}": Source(f"{_GRAMS}.{theirs}", InOneAxis()) for ours, theirs in norms.items()}
    modules = {"key": "key_proj", "value": "value_proj", "convolution": "conv1d"}
    names |= {f"layers.*.grams.{ours}": f"{_GRAMS}.{theirs}" for ours, theirs in modules.items()}
    parts = max((len(plan.shards) for plan in grams), default=0)
    table = f"{_GRAMS}.ple_embedding.ngram_embedding"
    return {**names, **{f"layers.*.grams.shard_{part}": f"{table}.shard_{part}" for part in range(parts)}}


def _without_grams(layer: LayerPlan) -> LayerPlan:
    return replace(layer, recurrence=layer.recurrence.block) if isinstance(layer.recurrence, WithGramsPlan) else layer


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed=TEXT_PARTS,
    other_parts=qwen3_next.OTHERS,
    # Followed from the configuration.
    ignored_tensors=(".layer_multipliers", ".ngram_heads_vocab_sizes", ".ngram_heads_offsets"),
)
