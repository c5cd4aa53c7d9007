"""The language models of those that see: any of several families, as `text_config` says."""

from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import llama, ministral, mistral, qwen2, qwen3
from jaxllm.models.families.common import text_part

READERS = {
    "llama": llama.read_config,
    "ministral": ministral.read_ministral,
    "ministral3": ministral.read_ministral3,
    "mistral": mistral.read_config,
    "qwen2": qwen2.read_config,
    "qwen3": qwen3.read_config,
}
"""Families whose checkpoints have the names of Llama's, by the type of the model."""

_SEVEN_BILLION: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_QWEN: dict[str, Any] = {**_SEVEN_BILLION, "vocab_size": 151936, "intermediate_size": 22016}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _SEVEN_BILLION,
    "mistral": {**_SEVEN_BILLION, "intermediate_size": 14336},
    "qwen2": _QWEN,
    "qwen3": _QWEN,
}
"""Sizes that configurations of these parts leave out, as transformers has them."""


def read_text_model(file: ConfigFile, architecture: str, default: str) -> ModelConfig:
    """The configuration of the language model in that of a model that sees; `default` is the type of one without.

    Raises `ModelError` for a type that is not supported here.
    """
    text = text_part(file)
    kind = text.text("model_type", default)
    if kind not in READERS:
        raise text.wrong("model_type", f"one of {', '.join(READERS)}")
    return READERS[kind](text.reading(**_DEFAULTS.get(kind, {})), architecture)
