"""ELECTRA (arXiv 2003.10555): BERT whose embeddings may be narrower than its layers."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import EncoderConfig, encoder_options
from jaxllm.models.families import bert
from jaxllm.models.families.family import HeadPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ELECTRA's configuration."""
    options = encoder_options(file, positions=512)
    columns = file.integer("embedding_size", 128)
    return EncoderConfig(
        architecture=architecture,
        **options,
        token_types=file.integer("type_vocab_size", 2),
        table_size=None if columns == options["hidden_size"] else columns,
    )


FAMILY = replace(
    bert.FAMILY,
    read_config=read_config,
    weight_names={**bert.names("electra."), "projection": "electra.embeddings_project"},
    head=HeadPlan(dense=True, activation="gelu", bias=True),
    head_names={"dense": "classifier.dense", "out": "classifier.out_proj"},
    other_heads=("discriminator_predictions.", "generator_predictions.", "generator_lm_head."),
    prefix="electra.",
)
