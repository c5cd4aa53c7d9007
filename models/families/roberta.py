"""RoBERTa (arXiv 1907.11692) and XLM-RoBERTa: BERT whose positions are counted from after the padding token's id."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import EncoderConfig, encoder_options
from jaxllm.models.families import bert, rotary_bert
from jaxllm.models.families.family import HeadPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """RoBERTa's configuration; with rotary positions, that of Jina's implementation of XLM-RoBERTa."""
    if rotary_bert.is_rotary(file):
        return rotary_bert.read_jina(file, architecture.replace("XLMRoberta", "JinaEmbeddingsV3"))
    padding = file.integer("pad_token_id", 1, minimum=0)
    return EncoderConfig(
        architecture=architecture,
        **encoder_options(file, positions=512, offset=padding + 1),
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

BGE_M3 = replace(FAMILY, token_head="colbert_linear.pt", lexical_head="sparse_linear.pt")
"""XLM-RoBERTa whose tokens have vectors and weights, too: BGE-M3 (arXiv 2402.03216)."""
