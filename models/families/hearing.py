"""Models that hear through an encoder as Whisper's, whose positions become rows in place of a language model's tokens.

Qwen2-Audio (arXiv 2407.10759), Audio Flamingo 3 (arXiv 2507.08128), Voxtral (arXiv 2507.13264) and GLM-ASR.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, TapsAsMatrix
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.whisper import encoder_names, read_sound, without_bias
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.towers.sound import TAPS, RowsPlan, SoundPlan

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

_GLM_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 59264, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True)
class _Encoder:
    """How an encoder is read from `audio_config`, and its names in the checkpoint, by its hidden size."""

    read: Callable[[ConfigFile], SoundPlan]
    names: Callable[[int], Names]


def _read_whisper(file: ConfigFile) -> SoundPlan:
    audio = file.reading(_AUDIO_NAMES, **_AUDIO_DEFAULTS)
    audio.ignore(
        "model_type", "scale_embedding", "encoder_layerdrop", "layerdrop", "initializer_range", "*dropout",
        # Of Whisper's decoder and training, and what follows from others.
        "vocab_size", "head_dim", "num_key_value_heads", "decoder_*", "max_target_positions", "use_weighted_layer_sum",
        "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "classifier_proj_size", "apply_spec_augment",
        "mask_*", "median_filter_width", "num_hidden_layers", "tie_word_embeddings",
        # Sampling, which files of transformers 4 have here.
        "temperature", "top_*", "typical_p", "num_beam*", "num_return_sequences", "*_penalty",
    )  # fmt: skip
    return read_sound(audio, read_activation(audio, "activation_function", "gelu"))


def _read_glm(file: ConfigFile) -> SoundPlan:
    """Rotated heads in place of learned positions; silence after the sound is seen, too."""
    audio = file.reading({**_AUDIO_NAMES, "max_source_positions": "max_position_embeddings"}, **_AUDIO_DEFAULTS)
    audio.ignore("model_type", "initializer_range", "*dropout")
    sound = read_sound(audio, read_activation(audio, "hidden_act", "gelu"))
    audio.expect(num_key_value_heads=sound.num_heads, head_dim=sound.head_size)
    rope = audio.section("rope_parameters") or ConfigFile({}, file.source)
    rope.expect(rope_type="default")
    share = audio.number("partial_rotary_factor", rope.number("partial_rotary_factor", 0.5))
    size = int(sound.head_size * share)
    if not 0 < size <= sound.head_size or size % 2:
        raise audio.wrong("rope_parameters", "a partial_rotary_factor that rotates an even part of each head")
    return replace(sound, sees_all=True, rotary_size=size, rope_theta=rope.number("rope_theta", 10000.0))


def _glm_names(columns: int) -> Names:
    layer, module = "audio_tower.layers.*", "sound.encoder.layers.*"
    return {
        "sound.encoder.first": Source("audio_tower.conv1", TapsAsMatrix(TAPS)),
        "sound.encoder.second": Source("audio_tower.conv2", TapsAsMatrix(TAPS)),
        "sound.encoder.norm": "audio_tower.norm",
        f"{module}.attention_norm": f"{layer}.input_layernorm",
        f"{module}.attention.query": f"{layer}.self_attn.q_proj",
        f"{module}.attention.key": without_bias(f"{layer}.self_attn.k_proj", columns),
        f"{module}.attention.value": f"{layer}.self_attn.v_proj",
        f"{module}.attention.output": f"{layer}.self_attn.o_proj",
        f"{module}.mlp_norm": f"{layer}.post_attention_layernorm",
        f"{module}.mlp.up": f"{layer}.mlp.fc1",
        f"{module}.mlp.down": f"{layer}.mlp.fc2",
    }


_WHISPER = _Encoder(_read_whisper, lambda columns: encoder_names("sound.encoder", "audio_tower", columns))
_GLM = _Encoder(_read_glm, _glm_names)

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
    """Several positions together, and two products."""
    return RowsPlan(
        file.integer("audio_token_id", minimum=0),
        windows="together",
        positions_per_row=_joined(file, config),
        is_mean=False,
        activation=read_activation(file, "projector_hidden_act", "gelu"),
        bias=False,
    )


def _glm(file: ConfigFile, config: ModelConfig) -> RowsPlan:
    """Several positions together, and two products with twice as many elements between them."""
    if _joined(file, config) != 4:
        raise file.wrong("audio_config", "an intermediate_size of 4 positions, which have a row")
    return RowsPlan(
        file.integer("audio_token_id", 59260, minimum=0),
        windows="apart",
        positions_per_row=4,
        is_mean=False,
        activation=read_activation(file, "projector_hidden_act", "gelu"),
        inner_size=2 * config.hidden_size,
    )


def _joined(file: ConfigFile, config: ModelConfig) -> int:
    """So many positions are a row as the encoder's MLP is wider than they."""
    sound = config.sound
    assert sound is not None
    if sound.intermediate_size % sound.hidden_size or sound.num_keys * sound.hidden_size % sound.intermediate_size:
        raise file.wrong("audio_config", "an intermediate_size of whole positions, which divide those of a window")
    return sound.intermediate_size // sound.hidden_size


def hearing_family(
    default: str,
    read_rows: ReadRows,
    projector: Names | Callable[[ModelConfig], Names],
    text_defaults: Mapping[str, Any] | None = None,
    encoder: _Encoder = _WHISPER,
    renamed: Mapping[str, str] | None = None,
    unused: tuple[str, ...] = (),
) -> Family:
    """A family whose language model is of the type `default`, unless its configuration says otherwise.

    `renamed` are further names of parts in checkpoints, and `unused` beginnings of tensors that may be there.
    """

    def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
        """The configuration of the language model in `text_config`, and the encoder's in `audio_config`."""
        sound = encoder.read(file.section("audio_config") or ConfigFile({}, file.source))
        heard = replace(read_text_model(file, architecture, default, text_defaults), sound=sound)
        return replace(heard, sound=replace(sound, rows=read_rows(file, heard)))

    def names_of(config: ModelConfig) -> Names:
        """Names in the checkpoint."""
        assert config.sound is not None
        last = projector(config) if callable(projector) else projector
        return {**TEXT_NAMES, **encoder.names(config.sound.hidden_size), **last}

    return Family(
        read_config,
        weight_names=names_of,
        renamed={
            **TEXT_PARTS,
            "model.audio_tower.": "audio_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
            **(renamed or {}),
        },
        other_parts=("audio_tower.", "multi_modal_projector.", *unused),
    )


_TWO = {"sound.projector": "multi_modal_projector.linear_1", "sound.second": "multi_modal_projector.linear_2"}

FAMILY = hearing_family("qwen2", _qwen, {"sound.projector": "multi_modal_projector.linear"})
FLAMINGO = hearing_family("qwen2", _flamingo, _TWO)
VOXTRAL = hearing_family("llama", _voxtral, _TWO, _VOXTRAL_DEFAULTS)
GLM_ASR = hearing_family("llama", _glm, _TWO, _GLM_DEFAULTS, _GLM)
