"""BERT (arXiv 1810.04805), as an embedder and as a classifier."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import Encoder, EncoderConfig, encoder_options
from jaxllm.models.families.family import Family, HeadPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """BERT's configuration."""
    return EncoderConfig(
        architecture=architecture,
        **encoder_options(file, positions=512),
        token_types=file.integer("type_vocab_size", 2),
    )


LAYER_NAMES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}


def names(prefix: str) -> dict[str, str]:
    """Names in the checkpoint of an encoder's modules."""
    embeddings = {
        "embedding": f"{prefix}embeddings.word_embeddings",
        "positions": f"{prefix}embeddings.position_embeddings",
        "types": f"{prefix}embeddings.token_type_embeddings",
        "norm": f"{prefix}embeddings.LayerNorm",
    }
    layers = {f"layers.*.{ours}": f"{prefix}encoder.layer.*.{theirs}" for ours, theirs in LAYER_NAMES.items()}
    return embeddings | layers


FAMILY = Family(
    read_config,
    weight_names=names("bert."),
    ignored_tensors=("position_ids",),
    use="embed",
    make_encoder=Encoder,
    head=HeadPlan(dense=True, bias=True),
    head_names={"dense": "bert.pooler.dense", "out": "classifier"},
    other_heads=("cls.", "pooler."),
    prefix="bert.",
)
