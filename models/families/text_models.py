"""The language models of those that see: any of several families, as `text_config` says."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import cohere, granite, llama, ministral, mistral, qwen2, qwen3, qwen3_moe
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import LLAMA_NAMES, Names, expert_names

READERS = {
    "cohere2": cohere.read_cohere2,
    "granite": granite.read_granite,
    "llama": llama.read_config,
    "ministral": ministral.read_ministral,
    "ministral3": ministral.read_ministral3,
    "mistral": mistral.read_config,
    "qwen2": qwen2.read_config,
    "qwen3": qwen3.read_config,
    "qwen3_moe": qwen3_moe.read_config,
}
"""Families whose checkpoints have the names of `TEXT_NAMES`, by the type of the model."""

TEXT_NAMES: Names = {**LLAMA_NAMES, **expert_names("mlp")}
"""Names of the tensors of any of these language models."""

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


def read_text_model(
    file: ConfigFile,
    architecture: str,
    default: str,
    sizes: Mapping[str, Any] | None = None,
    readers: Mapping[str, Callable[[ConfigFile, str], ModelConfig]] = READERS,
) -> ModelConfig:
    """The configuration of the language model in that of a model that sees; `default` is the type of one without.

    `sizes` are those that are left out, in place of the type's own, and `readers` read the types that there may be.
    Raises `ModelError` for a type that is not supported here.
    """
    text = text_part(file)
    kind = text.text("model_type", default)
    if kind not in readers:
        raise text.wrong("model_type", f"one of {', '.join(readers)}")
    # Files of transformers 4 say it of the language model and false of the whole, those of 5 the other way round.
    parts = [part for part in (file, file.section("text_config")) if part is not None]
    if any(part.boolean("tie_word_embeddings", False) for part in parts):
        text = text.but(tie_word_embeddings=True)
    return readers[kind](text.reading(**(_DEFAULTS.get(kind, {}) if sizes is None else sizes)), architecture)
