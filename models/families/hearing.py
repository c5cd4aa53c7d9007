"""Models that hear through Whisper's encoder, whose positions become rows in place of tokens of a language model.

Qwen2-Audio (arXiv 2407.10759), Audio Flamingo 3 (arXiv 2507.08128) and Voxtral (arXiv 2507.13264).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.whisper import encoder_names, read_sound
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.towers.sound import RowsPlan

_AUDIO_DEFAULTS = {
    "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32, "num_mel_bins": 128,
}  # fmt: skip
_AUDIO_NAMES = {
    "d_model": "hidden_size",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
}
"""Names that newer files have for what Whisper's have."""
_VOXTRAL_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 1e8, "head_dim": 128,
}  # fmt: skip

ReadRows = Callable[[ConfigFile, ModelConfig], RowsPlan]
"""Reads how positions become rows, of a model whose encoder is known already."""


def _qwen(file: ConfigFile, config: ModelConfig) -> RowsPlan:
    """Means of two positions, and a product."""
    return RowsPlan(file.integer("audio_token_index", 151646, minimum=0))


def _flamingo(file: ConfigFile, config: ModelConfig) -> RowsPlan:
    """Means of two positions, and two products."""
    return RowsPlan(
        file.integer("audio_token_id", 151669, minimum=0),
        windows="apart",
        activation=read_activation(file, "projector_hidden_act", "gelu"),
        bias=file.boolean("projector_bias", True),
    )


def _voxtral(file: ConfigFile, config: ModelConfig) -> RowsPlan:
    """So many positions in a row as the encoder's MLP is wider than they, and two products."""
    sound = config.sound
    assert sound is not None
    if sound.intermediate_size % sound.hidden_size or sound.num_keys * sound.hidden_size % sound.intermediate_size:
        raise file.wrong("audio_config", "an intermediate_size of whole positions, which divide those of a window")
    return RowsPlan(
        file.integer("audio_token_id", minimum=0),
        windows="together",
        positions_per_row=sound.intermediate_size // sound.hidden_size,
        is_mean=False,
        activation=read_activation(file, "projector_hidden_act", "gelu"),
        bias=False,
    )


def _family(
    default: str, read_rows: ReadRows, projector: Names, text_defaults: Mapping[str, Any] | None = None
) -> Family:
    """A family whose language model is of the type `default`, unless its configuration says otherwise."""

    def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
        """The configuration of the language model in `text_config`, and the encoder's in `audio_config`."""
        audio = (file.section("audio_config") or ConfigFile({}, file.source)).reading(_AUDIO_NAMES, **_AUDIO_DEFAULTS)
        audio.ignore(
            "model_type", "scale_embedding", "encoder_layerdrop", "layerdrop", "initializer_range", "*dropout",
            # Of Whisper's decoder, and what follows from others.
            "vocab_size", "head_dim", "num_key_value_heads",
        )  # fmt: skip
        sound = read_sound(audio, read_activation(audio, "activation_function", "gelu"))
        heard = replace(read_text_model(file, architecture, default, text_defaults), sound=sound)
        return replace(heard, sound=replace(sound, rows=read_rows(file, heard)))

    def names_of(config: ModelConfig) -> Names:
        """Names in the checkpoint."""
        assert config.sound is not None
        return {**TEXT_NAMES, **encoder_names("sound.encoder", "audio_tower", config.sound.hidden_size), **projector}

    return Family(
        read_config,
        weight_names=names_of,
        renamed={
            **TEXT_PARTS,
            "model.audio_tower.": "audio_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
        },
        other_parts=("audio_tower.", "multi_modal_projector."),
    )


_TWO = {"sound.projector": "multi_modal_projector.linear_1", "sound.second": "multi_modal_projector.linear_2"}

FAMILY = _family("qwen2", _qwen, {"sound.projector": "multi_modal_projector.linear"})
FLAMINGO = _family("qwen2", _flamingo, _TWO)
VOXTRAL = _family("llama", _voxtral, _TWO, _VOXTRAL_DEFAULTS)
