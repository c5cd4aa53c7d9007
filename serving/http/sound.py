"""The sound of requests: a bounded number of files at a time, whatever clients send."""

import asyncio
import logging
from pathlib import Path
from typing import Self

from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import ConfigError
from jaxllm.serving.llm.async_llm import RunText
from jaxllm.serving.media.audio.decoding import SoundDecoder
from jaxllm.serving.media.audio.resample import Samples
from jaxllm.serving.media.processes import process_count
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.serving.transcription.model import TranscriptionModel
from jaxllm.serving.transcription.transcriber import Hear, Transcriber

logger = logging.getLogger(__name__)

AT_A_TIME = 16
"""Sounds of all requests that are in memory with all their samples."""


class RequestSound:
    """Makes samples of files, and text of samples."""

    def __init__(self, options: ServerOptions, model: TranscriptionModel, tokenizer: Tokenizer, run: RunText) -> None:
        """`run` runs what takes a while in a thread."""
        self.model = model
        self._tokenizer, self._run = tokenizer, run
        processes = process_count(options.media_decoder_processes)
        self._decoder = SoundDecoder(processes, options.max_audio_seconds)
        self.places = asyncio.Semaphore(AT_A_TIME)
        """To be held for as long as the samples of a sound are."""

    @classmethod
    def of(cls, options: ServerOptions, info: EngineInfo, tokenizer: Tokenizer | None, run: RunText) -> Self | None:
        """From the files of a model that hears; None, with a warning, where they are missing or not supported."""
        sound = info.sound
        assert sound is not None
        if tokenizer is None:
            return None
        try:
            model = TranscriptionModel.read(Path(info.model_folder), tokenizer.token_ids, info.max_model_len)
            features = model.features
            if (features.num_bins, features.num_frames) != (sound.num_bins, sound.num_frames):
                made = f"{features.num_bins} x {features.num_frames}"
                raise ConfigError(
                    f"the model's files make features of {made}, but it hears {sound.num_bins} x {sound.num_frames}"
                )
        except ConfigError as error:
            logger.warning("transcriptions are refused: %s", error)
            return None
        return cls(options, model, tokenizer, run)

    async def samples(self, data: bytes) -> Samples:
        """The samples of a file. Raises `MediaError`s and `QueueFullError`."""
        return await self._decoder.decode(data)

    def transcriber(self, hear: Hear) -> Transcriber:
        """What makes text of samples, by asking the model so."""
        return Transcriber(self.model, self._tokenizer, hear, self._run)

    def close(self) -> None:
        """End the processes that decode."""
        self._decoder.close()
