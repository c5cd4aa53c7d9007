"""What a checkpoint's files say of how sound is processed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jaxllm.config.engine_info import SoundInfo
from jaxllm.errors import ConfigError
from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.speech_mel import NAMES, SpeechMel
from jaxllm.serving.media.checkpoint import IMAGES, PROCESSOR, read_object

_NESTED: Final = ("audio_processor", "feature_extractor")


def read_features(folder: Path, info: SoundInfo) -> MelFeatures | SpeechMel:
    """What makes features for a model that hears such windows, by the files in its folder.

    Raises `ConfigError`, also where these do not say it, or say that other features are made than the model hears.
    """
    found: MelFeatures | SpeechMel = _speech(folder, info) if info.windows == "led" else MelFeatures.read(folder)
    if (found.num_bins, found.num_frames) != (info.num_bins, info.num_frames):
        made = f"{found.num_bins} x {found.num_frames}"
        raise ConfigError(f"features of {made} are made, but {info.num_bins} x {info.num_frames} heard")
    return found


def _speech(folder: Path, info: SoundInfo) -> SpeechMel:
    fields: Any = read_object(folder / PROCESSOR)
    found = next((fields[name] for name in _NESTED if isinstance(fields.get(name), Mapping)), None)
    source, fields = (PROCESSOR, found) if found is not None else (IMAGES, read_object(folder / IMAGES))
    name = fields.get("feature_extractor_type")
    if name not in NAMES:
        raise ConfigError(f"{source}: feature_extractor_type is not {' or '.join(NAMES)}")
    return SpeechMel.of(fields, source, info.num_frames - info.context, info.context)
