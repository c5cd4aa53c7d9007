"""DistilBERT (arXiv 1910.01108): BERT with fewer layers, without token types, under names of its own."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import EncoderConfig, encoder_options
from jaxllm.models.families import bert
from jaxllm.models.families.family import HeadPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """DistilBERT's configuration."""
    options = encoder_options(
        file,
        positions=512,
        hidden_size="dim",
        num_attention_heads="n_heads",
        num_hidden_layers="n_layers",
        intermediate_size="hidden_dim",
        hidden_act="activation",
    )
    return EncoderConfig(architecture=architecture, **options)


_LAYER_NAMES = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}

_NAMES = {
    "embedding": "distilbert.embeddings.word_embeddings",
    "positions": "distilbert.embeddings.position_embeddings",
    "norm": "distilbert.embeddings.LayerNorm",
    **{f"layers.*.{ours}": f"distilbert.transformer.layer.*.{theirs}" for ours, theirs in _LAYER_NAMES.items()},
}

FAMILY = replace(
    bert.FAMILY,
    read_config=read_config,
    weight_names=_NAMES,
    head=HeadPlan(dense=True, activation="relu", bias=True),
    head_names={"dense": "pre_classifier", "out": "classifier"},
    other_heads=("vocab_",),
    prefix="distilbert.",
)
