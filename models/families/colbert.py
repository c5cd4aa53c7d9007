"""ColBERT (arXiv 2004.12832): an encoder, and a layer that makes a short vector of each token."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import bert, modernbert, rotary_bert
from jaxllm.models.families.family import Family
from jaxllm.models.families.uses import VECTOR_SIZES


def _with_vectors(family: Family) -> Family:
    def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
        file.ignore(*VECTOR_SIZES)
        return family.read_config(file, architecture)

    return replace(
        family,
        read_config=read_config,
        use="token_embed",
        token_head="linear.",
        other_heads=(*family.other_heads, "linear."),
    )


def _read_bert(file: ConfigFile, architecture: str) -> ModelConfig:
    """BERT's configuration; ColBERT's own code writes the same architecture for Jina's XLM-RoBERTa."""
    if rotary_bert.is_rotary(file):
        return rotary_bert.read_jina(file, "ColBERTJinaRobertaModel")
    return bert.read_config(file, architecture)


BERT = _with_vectors(replace(bert.FAMILY, read_config=_read_bert))
JINA = _with_vectors(rotary_bert.JINA_V3)
MODERN_BERT = _with_vectors(modernbert.FAMILY)
