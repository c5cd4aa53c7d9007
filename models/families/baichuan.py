"""Baichuan 1 and 2: Llama with one matrix for queries, keys and values; 13B has ALiBi in place of rotary positions."""

from collections.abc import Callable
from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, UnitRows
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_llama
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names

ROTARY_SIZE = 4096
"""Hidden size of the models with rotary positions, 7B: their configurations do not say it otherwise."""

NORMALISED_VOCABULARY = 125_696
"""Vocabulary size of Baichuan 2, whose output layer normalizes its rows; nothing else distinguishes it from 1."""


def reader(*, has_rotary: bool) -> Callable[[ConfigFile, str], ModelConfig]:
    """Reads configurations of either name; that of the first 7B means rotary positions whatever the size."""

    def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
        names = {} if file.has("max_position_embeddings") else {"max_position_embeddings": "model_max_length"}
        file = file.reading(names, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2)
        file.ignore("model_max_length", "z_loss_weight")
        config = ModelConfig(architecture=architecture, **read_llama(file))
        if has_rotary or config.hidden_size == ROTARY_SIZE:
            return config
        return replace(config, layers=tuple(layer.attending(rope=None, alibi=8.0) for layer in config.layers))

    return read_config


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    names: dict[str, str | Source] = {**LLAMA_NAMES, **gpt.fused_attention("model.layers.*.self_attn.W_pack", config)}
    if config.vocab_size == NORMALISED_VOCABULARY:
        names["head"] = Source("lm_head", UnitRows())
    return names


FAMILY = Family(reader(has_rotary=False), weight_names=weight_names, like="Llama")
FIRST = Family(reader(has_rotary=True), weight_names=weight_names, like="Llama")
