"""The sounds of conversations, made ready for the engine: a bounded number at a time, whatever clients send."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from jaxllm.errors import RequestError
from jaxllm.serving.media.audio.loader import SoundLoader
from jaxllm.serving.media.audio.windows import PreparedSound
from jaxllm.serving.media.errors import MediaError
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.media_parts import PlacedMedium
from jaxllm.serving.text.messages import AUDIO
from jaxllm.serving.text.sound_samples import PromptSound

AT_A_TIME = 8
"""Sounds of all requests that are fetched, decoded or made into features: ten minutes take 100 MB."""


class ChatSound:
    """Makes sounds of conversations ready for the engine. What is kept of one is what the model hears of it."""

    def __init__(self, options: MediaOptions, sound: PromptSound, loader: SoundLoader, metrics: Metrics) -> None:
        self._sound, self._loader, self._metrics = sound, loader, metrics
        self._most = options.max_audios_per_prompt
        self._places = asyncio.Semaphore(AT_A_TIME)

    @classmethod
    def of(cls, options: MediaOptions, sound: PromptSound, metrics: Metrics) -> Self | None:
        """None where prompts have no place for sound, or files do not say how it is processed.

        Raises `ConfigError` for options that name what is not there.
        """
        loader = None if sound.marker is None else sound.loader(options)
        return None if loader is None else cls(options, sound, loader, metrics)

    async def prepare(
        self,
        sources: Sequence[PlacedMedium],
        owner: str,
        kwargs: Mapping[str, Any] | None = None,
        io_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PreparedSound]:
        """The sounds of a request, in order; neither mm_processor_kwargs nor media_io_kwargs are known.

        Raises `RequestError` that names the place, and `QueueFullError`; then nothing more is fetched.
        """
        if not sources:
            return []
        for name, given in (("mm_processor_kwargs", kwargs), ("media_io_kwargs", io_kwargs)):
            if given:
                raise RequestError(f"{name}: sound is processed in one way; omit it", name)
        if len(sources) > self._most:
            raise RequestError(
                f"{len(sources)} sounds: a request may have at most {self._most} (--max-audios-per-prompt)",
                sources[self._most].where,
            )
        tasks = [asyncio.ensure_future(self._prepare(source, owner)) for source in sources]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            cache = self._loader.cache
            self._metrics.set_media_cache(cache.queries, cache.hits)

    @property
    def media(self) -> frozenset[str]:
        """See `ChatMedium`."""
        return frozenset({AUDIO})

    @property
    def written(self) -> Mapping[str, Callable[[int], str]]:
        """See `ChatMedium`."""
        return {AUDIO: self._sound.written}

    def write(self, prompt: str, prepared: Sequence[PreparedSound]) -> str:
        """The prompt with what stands for its sounds, in place of their markers. Raises `RequestError`."""
        return self._sound.write(prompt, prepared)

    async def _prepare(self, source: PlacedMedium, owner: str) -> PreparedSound:
        where = source.where
        async with self._places:
            try:
                return await self._loader.load(MediaSource(source.url, source.uuid, "sound"), owner=owner)
            except MediaError as error:
                raise type(error)(f"{where}: {error}", where) from None
            except RequestError as error:
                raise RequestError(f"{where}: {error}", where) from None

    def close(self) -> None:
        """End the processes that decode."""
        self._loader.close()
