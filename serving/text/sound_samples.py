"""`PromptSound`: sound that prompts bring, made ready for the engine, and text put in its place."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from jaxllm.config.engine_info import EngineInfo, SoundInfo
from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.requests.media import FIELD, PromptMedia
from jaxllm.serving.media.audio.features import read_features
from jaxllm.serving.media.audio.loader import SoundLoader
from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.resample import HIGHEST_RATE, LOWEST_RATE, RATE, Samples, resampled
from jaxllm.serving.media.audio.speech_mel import SpeechMel
from jaxllm.serving.media.audio.windows import PreparedSound, SoundWindow, SoundWindows, prepared_window
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.control_tokens import ChatPrompt
from jaxllm.serving.text.prompt_sound import GivenSound, SoundSamples, with_sound
from jaxllm.serving.text.prompts import IntArray
from jaxllm.serving.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_AROUND: Final = {
    "<|AUDIO|>": "Audio {number}: <|audio_bos|><|AUDIO|><|audio_eos|>",
    "[AUDIO]": "[BEGIN_AUDIO][AUDIO]",
    "<|pad|>": "<|begin_of_audio|><|pad|><|end_of_audio|>",
}
"""What models were trained with around a marker: Qwen2-Audio, Voxtral and GLM-ASR."""


@dataclass(frozen=True)
class PromptSound:
    """How a model takes sound. Immutable, and shared by threads.

    Without `features`, sound must be given as features. `marker` is the text of the token in whose place rows stand.
    """

    info: SoundInfo
    block_size: int
    features: MelFeatures | SpeechMel | None
    tokenizer: Tokenizer | None
    marker: str | None
    most_sounds: int | None
    """Sounds in a prompt; None: whoever prepares them has the limit."""

    @classmethod
    def of(cls, info: EngineInfo, tokenizer: Tokenizer | None, options: MediaOptions | None) -> Self:
        """From the files of a model that hears, with a warning where they do not say how sound is processed."""
        sound = info.sound
        assert sound is not None
        features: MelFeatures | SpeechMel | None = None
        try:
            features = read_features(Path(info.model_folder), sound)
        except ConfigError as error:
            logger.warning("samples of sound are refused: %s", error)
        marker = None
        if tokenizer is not None and sound.token_id is not None:
            marker = tokenizer.hf.backend_tokenizer.id_to_token(sound.token_id)
        most = None if options is None else options.max_audios_per_prompt
        return cls(sound, info.block_size, features, tokenizer, marker, most)

    @property
    def windows(self) -> SoundWindows | None:
        """What makes windows of samples; None where the model's files do not say how."""
        return None if self.features is None else SoundWindows(self.features, self.info)

    def loader(self, options: MediaOptions) -> SoundLoader | None:
        """What loads sounds by their URLs, where samples can be taken. Raises `ConfigError` for wrong options."""
        windows = self.windows
        return None if windows is None else SoundLoader(windows, options)

    def media(self, sounds: Sequence[GivenSound], token_ids: IntArray) -> tuple[PromptMedia, npt.NDArray[np.int32]]:
        """The sounds of a prompt, and its tokens with all that stand for rows of them. Raises `RequestError`."""
        if self.most_sounds is not None and len(sounds) > self.most_sounds:
            raise RequestError(
                f"{len(sounds)} sounds: a prompt may have at most {self.most_sounds} (max_audios_per_prompt)", FIELD
            )
        return with_sound([self.prepare(each) for each in sounds], token_ids, self.info, self.block_size)

    def prepare(self, given: GivenSound) -> PreparedSound:
        """A sound as the engine takes it. Raises `RequestError`."""
        if isinstance(given, PreparedSound):
            return given
        if isinstance(given, SoundWindow):
            return prepared_window(given, self.info)
        if self.windows is None:
            raise RequestError("this model takes no samples of sound", FIELD)
        samples = _checked(given)
        # Rounding up must not make one window two.
        return self.windows.of(resampled(samples, given.rate)[: max(1, len(samples) * RATE // given.rate)])

    def written(self, number: int) -> str:
        """What stands for the first, second, ... sound of a conversation whose template has no place for it."""
        assert self.marker is not None
        return _AROUND.get(self.marker, self.marker).format(number=number)

    def write(self, text: str, prepared: Sequence[PreparedSound]) -> str:
        """The text with a token for each row of the sounds. A `ChatPrompt`, whose own markers are meant, stays one.

        Raises `RequestError` where it has more markers than sounds, or fewer.
        """
        assert self.marker is not None
        if not isinstance(text, ChatPrompt):
            return _joined(text, self.marker, self.marker, prepared)
        assert self.tokenizer is not None
        secret = self.tokenizer.control.named_secretly(self.marker)
        return text.escaped_as(_joined(text.escaped.text, secret, self.marker, prepared))


def _checked(given: SoundSamples) -> Samples:
    samples, rate = given.samples, given.rate
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise RequestError(f"audio: {rate} samples per second; expected {LOWEST_RATE} to {HIGHEST_RATE}", FIELD)
    if not np.isfinite(samples).all():
        raise RequestError("audio: samples must be finite", FIELD)
    if not len(samples):
        raise RequestError("audio: there are no samples", FIELD)
    return samples


def _joined(text: str, marker: str, name: str, prepared: Sequence[PreparedSound]) -> str:
    between = text.split(marker)
    if len(between) - 1 != len(prepared):
        raise RequestError(
            f"the prompt has {len(between) - 1} places for sound ({quoted(name)}), but {len(prepared)} sounds were "
            "given",
            FIELD,
        )
    texts = [marker * each.num_rows for each in prepared]
    return "".join(part for pair in zip(between, [*texts, ""], strict=True) for part in pair)
