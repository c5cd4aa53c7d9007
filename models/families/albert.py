"""ALBERT (arXiv 1909.11942): BERT whose layers share weights, with narrow embeddings."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import EncoderConfig, encoder_options
from jaxllm.models.families import bert
from jaxllm.models.families.family import HeadPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ALBERT's configuration."""
    # Released ones name what transformers does not look at.
    file.ignore("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    if file.integer("inner_group_num", 1) != 1:
        raise file.wrong("inner_group_num", "1")
    file = file.reading(hidden_act="gelu_new")
    options = encoder_options(file, positions=512)
    layers, groups = len(options["layers"]), file.integer("num_hidden_groups", 1)
    if groups > layers:
        raise file.wrong("num_hidden_groups", f"at most the number of layers, {layers}")
    return EncoderConfig(
        architecture=architecture,
        **options,
        token_types=file.integer("type_vocab_size", 2),
        table_size=file.integer("embedding_size", 128),
        weights_of=tuple(int(layer / (layers / groups)) for layer in range(layers)),
    )


_LAYER_NAMES = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "up": "ffn",
    "down": "ffn_output",
    "mlp_norm": "full_layer_layer_norm",
}

_LAYER = "albert.encoder.albert_layer_groups.*.albert_layers.0"
_NAMES = {
    **bert.names("albert."),
    "projection": "albert.encoder.embedding_hidden_mapping_in",
    **{f"layers.*.{ours}": f"{_LAYER}.{theirs}" for ours, theirs in _LAYER_NAMES.items()},
}

FAMILY = replace(
    bert.FAMILY,
    read_config=read_config,
    weight_names=_NAMES,
    head=HeadPlan(dense=True, bias=True),
    head_names={"dense": "albert.pooler", "out": "classifier"},
    other_heads=("predictions.", "sop_classifier.", "pooler."),
    prefix="albert.",
)
