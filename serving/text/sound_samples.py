"""`SampledSound`: samples that prompts bring, made into the features of a window."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import ConfigError, RequestError
from jaxllm.requests.media import FIELD
from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.resample import HIGHEST_RATE, LOWEST_RATE, RATE, resampled
from jaxllm.serving.text.prompt_sound import SoundSamples, SoundWindow

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampledSound:
    """How a model takes samples. Immutable, and shared by threads."""

    features: MelFeatures

    @classmethod
    def of(cls, info: EngineInfo) -> Self | None:
        """From the files of a model that hears; None, with a warning, where they are missing or not supported."""
        try:
            return cls(MelFeatures.read(Path(info.model_folder)))
        except ConfigError as error:
            logger.warning("samples of sound are refused: %s", error)
            return None

    def window(self, given: SoundSamples) -> SoundWindow:
        """The features of samples. Raises `RequestError`."""
        samples, rate = given.samples, given.rate
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise RequestError(f"audio: {rate} samples per second; expected {LOWEST_RATE} to {HIGHEST_RATE}", FIELD)
        if len(samples) > self.features.seconds * rate:
            seconds = len(samples) / rate
            message = f"audio: {seconds:.1f} s; a prompt has one window, of at most {self.features.seconds} s"
            raise RequestError(message, FIELD)
        if not np.isfinite(samples).all():
            raise RequestError("audio: samples must be finite", FIELD)
        if not len(samples):
            raise RequestError("audio: there are no samples", FIELD)
        found = resampled(samples, rate)[: self.features.seconds * RATE]
        return SoundWindow(self.features(found), -(-len(found) // self.features.hop))
