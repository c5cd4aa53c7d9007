"""RoBERTa (arXiv 1907.11692) and XLM-RoBERTa: BERT whose positions are counted from behind the padding token's id."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import EncoderConfig, encoder_options
from jaxllm.models.families import bert
from jaxllm.models.families.family import HeadPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """RoBERTa's configuration."""
    padding = file.integer("pad_token_id", 1, minimum=0)
    return EncoderConfig(
        architecture=architecture,
        **encoder_options(file, positions=512, offset=padding + 1),
        layer_norm_eps=file.number("layer_norm_eps", 1e-12),
        token_types=file.integer("type_vocab_size", 2),
    )


FAMILY = replace(
    bert.FAMILY,
    read_config=read_config,
    weight_names=bert.names("roberta."),
    head=HeadPlan(dense=True, bias=True),
    head_names={"dense": "classifier.dense", "out": "classifier.out_proj"},
    other_heads=("lm_head.", "pooler.", "roberta.pooler."),
    prefix="roberta.",
)

CLASSIFIER = replace(FAMILY, use="classify")
