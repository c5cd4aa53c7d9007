"""Qwen2-Audio (arXiv 2407.10759): Qwen2 that hears through Whisper's encoder, two positions to a row."""

from dataclasses import replace

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


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the encoder's in `audio_config`."""
    audio = (file.section("audio_config") or ConfigFile({}, file.source)).reading(**_AUDIO_DEFAULTS)
    audio.ignore("model_type", "scale_embedding", "encoder_layerdrop", "initializer_range", "*dropout")
    sound = read_sound(audio, read_activation(audio, "activation_function", "gelu"))
    token_id = file.integer("audio_token_index", 151646, minimum=0)
    config = read_text_model(file, architecture, "qwen2")
    return replace(config, sound=replace(sound, rows=RowsPlan(token_id)))


def names_of(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    assert config.sound is not None
    return {
        **TEXT_NAMES,
        **encoder_names("sound.encoder", "audio_tower", config.sound.hidden_size),
        "sound.projector": "multi_modal_projector.linear",
    }


FAMILY = Family(
    read_config,
    weight_names=names_of,
    renamed={
        **TEXT_PARTS,
        "model.audio_tower.": "audio_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    },
    other_parts=("audio_tower.", "multi_modal_projector."),
)
